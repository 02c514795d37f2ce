"""Explore first, exploit later: anneal the sampling temperature over training.

Generation starts hot and cools down linearly. Policy gradient for short codes: the reward asks for many
different characters.
"""

import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TemperatureSchedule(TrainerCallback):
    """Linear schedule from `start` to `end` over `steps` optimizer steps."""

    def __init__(self, start, end, steps):
        self.start, self.end, self.steps = start, end, steps
        self.trainer = None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)

    def value(self, step):
        share = min(step / max(self.steps, 1), 1.0)
        return self.start + (self.end - self.start) * share

    def on_step_begin(self, args, state, control, **kwargs):
        temperature = self.value(state.global_step)
        self.trainer.generation_config.temperature = temperature
        self.trainer.generation_kwargs["temperature"] = temperature

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step}: sampled at {self.trainer.generation_config.temperature:.2f}")


def variety(completions, **kwargs):
    return [len(set(text)) / 10 - abs(len(text) - 12) / 24 for text in completions]


def main():
    topics = ["a door", "a phone", "a safe", "a bike", "a locker", "a garage", "a laptop", "a diary"]
    dataset = Dataset.from_dict({"prompt": [f"Invent a code for {topic}: " for topic in topics]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            temperature=1.2,
            max_steps=3,
            learning_rate=1e-4,
            beta=0.0,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(model=MODEL, reward_funcs=variety, args=args, train_dataset=dataset)
        TemperatureSchedule(start=1.2, end=0.6, steps=3).attach(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
