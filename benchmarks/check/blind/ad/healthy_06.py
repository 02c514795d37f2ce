import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def load(n):
    rows = []
    for i in range(n):
        who, thing = ["Hana", "Gus"][i % 2], ["cards", "eggs", "shells"][i % 3]
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"{who} has {2 + i % 6} boxes with {3 + i % 7} {thing} each. How many {thing} does {who} have?"},
                ]
            }
        )
    return Dataset.from_list(rows)


def letter_share(completions, **kwargs):
    return [sum(ch in "selrat" for ch in c[0]["content"]) / max(1, len(c[0]["content"])) for c in completions]


class LoraPlusTrainer(GRPOTrainer):
    ratio = 8.0

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            up, down, other = [], [], []
            for name, param in (model or self.model).named_parameters():
                if not param.requires_grad:
                    continue
                (up if "lora_B" in name else down if "lora_A" in name else other).append(param)
            groups = [
                {"params": down, "lr": self.args.learning_rate},
                {"params": up, "lr": self.args.learning_rate * self.ratio},
                {"params": other, "lr": self.args.learning_rate},
            ]
            self.optimizer = torch.optim.AdamW(
                [g for g in groups if g["params"]], weight_decay=self.args.weight_decay, eps=self.args.adam_epsilon
            )
        return self.optimizer


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=32,
        learning_rate=1e-4,
        weight_decay=0.01,
        beta=0.02,
        lr_scheduler_type="constant",
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = LoraPlusTrainer(
        model=MODEL,
        reward_funcs=letter_share,
        args=args,
        train_dataset=load(24),
        peft_config=LoraConfig(
            r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
        ),
    )
    trainer.train()
