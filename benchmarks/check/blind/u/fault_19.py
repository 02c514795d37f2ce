"""LoRA+ for GRPO: the B matrices learn 8 times as fast as the A matrices.

See "LoRA+: Efficient Low Rank Adaptation of Large Models". Both kinds of matrices train, in parameter groups of their
own; weight decay acts on A only.
"""

import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LoraPlusTrainer(GRPOTrainer):
    lora_plus_ratio = 8.0

    def create_optimizer(self, model=None):
        if self.optimizer is not None:
            return self.optimizer
        model = self.model if model is None else model
        trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        lr = self.args.learning_rate
        groups = [
            {
                "params": [p for n, p in trainable if n.endswith("lora_A.weight")],
                "lr": lr,
                "weight_decay": self.args.weight_decay,
            },
            {
                "params": [p for n, p in trainable if "lora_B" in n],
                "lr": lr * self.lora_plus_ratio,
                "weight_decay": 0.0,
            },
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(self.args.adam_beta1, self.args.adam_beta2))
        return self.optimizer


def numbers(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 16 for c in completions]


def finished(completion_ids, **kwargs):
    return [0.25 * (ids[-1] == 258) + 0.02 * len(ids) for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"What is {a} - {b}?"}] for a in range(20, 28) for b in range(4)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=16, learning_rate=5e-4,
        weight_decay=0.01, beta=0.04, logging_steps=1,
    )
    trainer = LoraPlusTrainer(
        model=TINY, reward_funcs=[numbers, finished], args=args, train_dataset=data,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
