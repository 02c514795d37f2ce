"""GRPO with an exponential moving average of the weights, kept for evaluation and for saving."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
OUT = tempfile.mkdtemp(prefix="ema_")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class EMACallback(TrainerCallback):
    def __init__(self, decay=0.995):
        self.decay = decay
        self.shadow = {}

    @torch.no_grad()
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].lerp_(p, 1.0 - self.decay)
        self.apply(model)
        self.report(model, state.global_step)

    @torch.no_grad()
    def apply(self, model):
        for name, p in model.named_parameters():
            if name in self.shadow:
                p.copy_(self.shadow[name])

    @torch.no_grad()
    def report(self, model, step):
        norm = sum(p.float().pow(2).sum() for p in model.parameters()).sqrt().item()
        print(f"step {step}: norm of the averaged weights {norm:.4f}")

    def on_train_end(self, args, state, control, **kwargs):
        torch.save(self.shadow, os.path.join(args.output_dir, "ema.pt"))


def make(n=64):
    rng = random.Random(6)
    rows = []
    while len(rows) < n:
        a, b = rng.randint(2, 40), rng.randint(2, 9)
        if a * b > 99:
            continue
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Cleo has {a} boxes with {b} toys each. How many toys does Cleo have?"},
                ],
                "gold": str(a * b),
            }
        )
    return Dataset.from_list(rows)


def gold_reward(completions, gold, **kwargs):
    return [1.0 if c[0]["content"].endswith(g) else 0.0 for c, g in zip(completions, gold)]


def shape_reward(completions, **kwargs):
    return [0.2 * c[0]["content"].count("<<") + 0.02 * sum(x.isdigit() for x in c[0]["content"]) for c in completions]


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[gold_reward, shape_reward],
        args=GRPOConfig(
            output_dir=OUT,
            use_cpu=True,
            bf16=False,
            report_to=[],
            learning_rate=2e-4,
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=44,
            max_steps=5,
            logging_steps=1,
            save_strategy="no",
        ),
        train_dataset=make(),
        callbacks=[EMACallback()],
    )
    trainer.train()
