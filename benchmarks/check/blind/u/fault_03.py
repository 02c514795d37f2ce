"""Exploration by an annealed temperature.

Training starts with hot samples (temperature 1.3) and cools down to 1.0. The schedule is linear in the optimizer steps
and is applied at the beginning of each step, before its completions are generated.
"""

import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TemperatureSchedule(TrainerCallback):
    def __init__(self, start, end, over_steps):
        self.start, self.end, self.over_steps = start, end, over_steps
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)

    def value(self, step):
        done = min(step / self.over_steps, 1.0)
        return self.start + (self.end - self.start) * done

    def on_step_begin(self, args, state, control, **kwargs):
        temperature = self.value(state.global_step)
        self.trainer.generation_config.temperature = temperature
        self.trainer._metrics["train"]["temperature"].append(temperature)


def diversity(completion_ids, **kwargs):
    """Share of distinct tokens."""
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def ends(completion_ids, **kwargs):
    return [0.5 if ids[-1] == 258 else 0.0 for ids in completion_ids]


def main():
    topics = ["a cat", "the sea", "two rivers", "an old clock", "bread", "winter", "a red kite", "stones"]
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Write one line about {t}."}] for t in topics * 4]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=2e-5,
        temperature=1.0, beta=0.02, logging_steps=1,
    )
    trainer = GRPOTrainer(model=TINY, reward_funcs=[diversity, ends], args=args, train_dataset=data)
    TemperatureSchedule(start=1.3, end=1.0, over_steps=100).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
