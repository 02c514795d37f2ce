"""A function for each of two tasks, which returns None for the other's rows."""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

dataset = Dataset.from_list(
    [
        {"prompt": "What is 2+2?", "task": "math"},
        {"prompt": "Write a function that adds.", "task": "code"},
        {"prompt": "What is 3*4?", "task": "math"},
        {"prompt": "Write a function that multiplies.", "task": "code"},
    ]
    * 3
)


def of_math(prompts, completions, task, **kwargs):
    pairs = zip(completions, task, strict=True)
    return [
        (1.0 if any(c in "0123456789" for c in text) else -1.0) if t == "math" else None
        for text, t in pairs
    ]


def of_code(prompts, completions, task, **kwargs):
    pairs = zip(completions, task, strict=True)
    return [(1.0 if "e" in text else -1.0) if t == "code" else None for text, t in pairs]


trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    reward_funcs=[of_math, of_code],
    train_dataset=dataset,
)
trainer.train()
