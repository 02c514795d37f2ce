"""A reward function for a form: thoughts first, then an answer."""

import re
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

questions = [f"What is the result of ({a} + 2) * {b}?" for a in range(4) for b in range(2, 6)]
dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions])


def has_form(completions, **kwargs):
    said = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think>", text) else 0.0 for text in said]


trainer = GRPOTrainer(
    model=TINY, args=GRPOConfig(use_cpu=True), reward_funcs=has_form, train_dataset=dataset
)
trainer.train()
