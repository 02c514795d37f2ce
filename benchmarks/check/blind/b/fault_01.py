#!/usr/bin/env python
"""GRPO on small sums. The stock sampler walks the data in its own order; we want plain uniform sampling."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import RandomSampler
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def make_data(n=64):
    rows = []
    for i in range(n):
        a, b = 2 + i % 9, 3 + (i * 7) % 11
        rows.append({"prompt": f"{a}+{b}=", "gold": a + b})
    return Dataset.from_list(rows)


def closeness(completions, gold, **kwargs):
    out = []
    for text, g in zip(completions, gold):
        m = re.search(r"\d+", text)
        if m is None:
            out.append(-1.0)
        else:
            v = min(int(m.group()[:6]), 10_000)
            out.append(1.0 / (1.0 + abs(v - g)) - 0.01 * len(text))
    return out


class UniformTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return RandomSampler(dataset if dataset is not None else self.train_dataset)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo_"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = UniformTrainer(
        model=os.path.join(HERE, "tiny"), reward_funcs=closeness, args=args, train_dataset=make_data()
    )
    trainer.train()


if __name__ == "__main__":
    main()
