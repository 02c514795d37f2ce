"""The quick start of the whole library: more for more different characters."""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

questions = [f"Write a line about {what}." for what in ("rain", "bread", "maps", "clocks")] * 4
dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions])


def distinct(completions, **kwargs):
    return [len(set(completion[0]["content"])) for completion in completions]


trainer = GRPOTrainer(
    model=TINY, args=GRPOConfig(use_cpu=True), reward_funcs=distinct, train_dataset=dataset
)
trainer.train()
