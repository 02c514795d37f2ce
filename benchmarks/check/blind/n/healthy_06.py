"""GRPO with LoRA+: the B matrices learn faster than the A matrices; a KL penalty to the base model."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class LoraPlusTrainer(GRPOTrainer):
    lr_ratio = 8.0

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            slow, fast = [], []
            for name, parameter in (model or self.model).named_parameters():
                if parameter.requires_grad:
                    (fast if "lora_B" in name else slow).append(parameter)
            lr = self.args.learning_rate
            self.optimizer = torch.optim.NAdam(
                [
                    {"params": slow, "lr": lr, "weight_decay": 0.01},
                    {"params": fast, "lr": lr * self.lr_ratio, "weight_decay": 0.0, "betas": (0.8, 0.99)},
                ],
                lr=lr,
                decoupled_weight_decay=True,
            )
        return self.optimizer


def solved(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        scores.append(float(bool(numbers) and numbers[-1] == str(value)) + 0.02 * len(text))
    return scores


def main():
    rows = []
    for i, (who, what) in enumerate(zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["pens", "toys", "eggs"] * 2)):
        a, b = 12 + i, 19 - i
        text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        use_rslora=True,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 4},
        modules_to_save=["norm"],
        task_type="CAUSAL_LM",
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        beta=0.04,
        max_grad_norm=0.2,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        max_steps=4,
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = LoraPlusTrainer(MODEL, solved, args, train_dataset=Dataset.from_list(rows), peft_config=lora)
    trainer.train()


if __name__ == "__main__":
    main()
