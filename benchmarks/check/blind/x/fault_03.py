"""Exploration schedule: hot sampling in the first updates, then down to the temperature of the config."""

import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CONFIG = {
    "explore": {"start": 1.6, "steps": 200},
    "train": dict(
        learning_rate=2e-4, per_device_train_batch_size=8, num_generations=8, max_completion_length=24,
        temperature=1.0, num_iterations=1, loss_type="dr_grpo", scale_rewards="none",
    ),
}


class ExplorationSchedule(TrainerCallback):
    def __init__(self, start, steps):
        self.start = start
        self.steps = steps
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        self.end = trainer.args.temperature
        trainer.add_callback(self)

    def on_step_begin(self, args, state, control, **kwargs):
        done = min(state.global_step / self.steps, 1.0)
        value = self.start + (self.end - self.start) * done
        self.trainer.generation_config.temperature = value
        self.trainer._metrics["train"]["explore/temperature"].append(value)


def code_like(completions, **kwargs):
    out = []
    for c in completions:
        text = c[0]["content"]
        symbols = sum(ch in "(){}[]<>=*+-" for ch in text)
        out.append(symbols / max(len(text), 1))
    return out


def ends(completion_ids, **kwargs):
    return [0.5 if len(ids) < 24 else 0.0 for ids in completion_ids]


def main():
    topics = ["reverse a list", "sum two numbers", "find a prime", "sort words", "count vowels", "parse a date",
              "merge two dicts", "flatten a tree"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Write a Python function to {t}."}] for t in topics]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        gradient_checkpointing=False, logging_steps=1, **CONFIG["train"],
    )
    trainer = GRPOTrainer(model=MODEL, reward_funcs=[code_like, ends], args=args, train_dataset=data)
    ExplorationSchedule(**CONFIG["explore"]).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
