"""A reward function for more characters, of prompts that are texts, and a folder of one's own."""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

dataset = Dataset.from_dict({"prompt": ["The sky is", "The sun is", "Water is", "Grass is"] * 4})


def longer(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=longer,
    args=GRPOConfig(output_dir="tiny-grpo", use_cpu=True),
    train_dataset=dataset,
)
trainer.train()
