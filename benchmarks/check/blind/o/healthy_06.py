"""LoRA+ (B learns faster than A) on an rsLoRA / DoRA adapter, with a KL penalty to the base model."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoraPlusTrainer(GRPOTrainer):
    ratios = {"lora_A": 1.0, "lora_B": 16.0, "lora_magnitude_vector": 4.0}

    def create_optimizer(self, model=None):
        model = self.model if model is None else model
        if self.optimizer is None:
            groups = {kind: [] for kind in self.ratios}
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    groups[next(kind for kind in self.ratios if kind in name)].append(parameter)
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": members, "lr": self.args.learning_rate * self.ratios[kind]}
                    for kind, members in groups.items()
                ],
                betas=(0.9, 0.99),
                weight_decay=0.0,
            )
        return self.optimizer


def correct(completions, gold, **kwargs):
    return [1.0 if g in c[0]["content"] else 0.0 for c, g in zip(completions, gold)]


def digits(completions, **kwargs):
    return [0.1 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


def main():
    rng = random.Random(6)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Hana has {a} boxes with {b} stamps each. How many stamps does Hana have?"}],
                "gold": str(a * b),
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        beta=0.04,
        num_iterations=2,
        max_steps=4,
        learning_rate=3e-4,
        lr_scheduler_type="cosine",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
    )
    LoraPlusTrainer(
        model=MODEL,
        reward_funcs=[correct, digits],
        args=args,
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(
            r=4,
            lora_alpha=8,
            use_rslora=True,
            use_dora=True,
            target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    ).train()


if __name__ == "__main__":
    main()
