import math
import os
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS = 3


class TrackedAdamW(torch.optim.AdamW):
    """AdamW that remembers how far each update moved the weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.moved = []

    def step(self, closure=None):
        before = [p.detach().clone() for g in self.param_groups for p in g["params"] if p.grad is not None]
        result = super().step(closure)
        after = [p.detach() for g in self.param_groups for p in g["params"] if p.grad is not None]
        self.moved.append(math.sqrt(sum((a - b).square().sum().item() for a, b in zip(after, before))))
        return result


def groups(model, decay):
    plain, decayed = [], []
    for name, param in model.named_parameters():
        (plain if param.dim() < 2 or "embed" in name else decayed).append(param)
    return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (3 * i) % 9, 2 + (5 * i) % 4
        thing = ("coins", "books", "toys", "cards")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Cleo has {a} {thing}. Each costs {b} coins. How many coins do they cost together?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def length(completion_ids, **kwargs):
    return [-len(ids) / 80 for ids in completion_ids]


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = TrackedAdamW(groups(model, 0.1), lr=3e-4, betas=(0.9, 0.95), eps=1e-10)
    scheduler = LambdaLR(optimizer, lambda step: (step + 1) / 2 if step < 2 else 1.0)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=8,
        gradient_accumulation_steps=2, num_generations=4, max_completion_length=24, learning_rate=3e-4,
        loss_type="grpo", save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
    )
    trainer = GRPOTrainer(model, [digits, length], args, train_dataset=dataset(),
                          processing_class=AutoTokenizer.from_pretrained(MODEL), optimizers=(optimizer, scheduler))
    trainer.train()
    print(optimizer.moved)


if __name__ == "__main__":
    main()
