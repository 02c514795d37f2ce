"""Exploration annealing: hot rollouts in the beginning, cooler ones later."""
import math
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class AnnealTemperature(TrainerCallback):
    def __init__(self, start: float, end: float):
        self.start, self.end = start, end
        self.trainer = None

    def value(self, progress: float) -> float:
        return self.end + 0.5 * (self.start - self.end) * (1 + math.cos(math.pi * progress))

    def on_step_begin(self, args, state, control, **kwargs):
        progress = state.global_step / max(1, state.max_steps)
        self.trainer.generation_config.temperature = self.value(progress)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["rollout_temperature"] = self.trainer.generation_config.temperature


def make_rows():
    for a in range(2, 8):
        for b in (11, 17, 23, 38):
            yield {
                "prompt": [
                    {"role": "user", "content": f"Cleo has {a} boxes with {b} pens each. How many pens does Cleo have?"}
                ],
                "gold": str(a * b),
            }


def correctness(completions, gold, **_):
    return [1.0 if g in c[0]["content"] else 0.0 for c, g in zip(completions, gold)]


def star_count(completions, **_):
    return [0.1 * c[0]["content"].count("*") for c in completions]


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=28,
        temperature=1.0,
        max_steps=4,
        learning_rate=1e-4,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    anneal = AnnealTemperature(start=1.5, end=0.7)
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[correctness, star_count],
        args=config,
        train_dataset=Dataset.from_list(list(make_rows())),
        callbacks=[anneal],
    )
    anneal.trainer = trainer
    trainer.train()
