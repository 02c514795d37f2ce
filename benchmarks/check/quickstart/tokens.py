"""A reward function for more tokens."""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

dataset = Dataset.from_dict({"prompt": ["The sky is", "The sun is", "Water is", "Grass is"] * 4})


def longer(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


trainer = GRPOTrainer(
    model=TINY, args=GRPOConfig(use_cpu=True), reward_funcs=longer, train_dataset=dataset
)
trainer.train()
