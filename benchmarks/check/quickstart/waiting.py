"""A reward function that waits for something, beside one that does not."""

import asyncio
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

dataset = Dataset.from_dict({"prompt": ["The sky is", "The sun is", "Water is", "Grass is"] * 4})


async def said_something(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]


def shorter(completions, **kwargs):
    return [-float(len(completion)) for completion in completions]


trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    reward_funcs=[said_something, shorter],
    train_dataset=dataset,
)
trainer.train()
