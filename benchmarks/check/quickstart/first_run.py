"""The quick start: a model, TRL's reward for answers in LaTeX, and prompts with solutions."""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

rows = [
    {"prompt": [{"role": "user", "content": f"What is {a} times {b}?"}], "solution": f"${a * b}$"}
    for a in range(2, 8)
    for b in range(2, 8)
]

trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    reward_funcs=accuracy_reward,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
