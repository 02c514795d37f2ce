"""A reward function that compares what stands in a box with the column `ground_truth`."""

import re
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

rows = [
    {"prompt": f"Problem: {a} boxes with {b} eggs each. Solution:", "ground_truth": str(a * b)}
    for a in range(2, 6)
    for b in range(2, 6)
]


def right(completions, ground_truth, **kwargs):
    found = [re.search(r"(\d+)", completion) for completion in completions]
    said = [match.group(1) if match else "" for match in found]
    return [1.0 if text == truth else 0.0 for text, truth in zip(said, ground_truth, strict=True)]


trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    reward_funcs=right,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
