import os, tempfile
from dataclasses import dataclass
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


@dataclass
class Anneal:
    start: float = 1.3
    end: float = 0.7
    over: int = 4

    def at(self, step: int) -> float:
        t = min(step / self.over, 1.0)
        return self.start + t * (self.end - self.start)


class TemperatureCallback(TrainerCallback):
    """Explore first, exploit later (linear)."""

    def __init__(self, schedule: Anneal):
        self.schedule = schedule
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        value = self.schedule.at(state.global_step)
        self.trainer.temperature = value
        self.trainer.generation_config.temperature = value
        self.trainer.generation_kwargs["temperature"] = value


def evens(completions, **kwargs):
    return [sum(ch in "02468" for ch in text) / 4 + 0.02 * len(text) for text in completions]


if __name__ == "__main__":
    schedule = Anneal()
    data = Dataset.from_dict({"prompt": [f"{n} plus {n + 1} is" for n in range(10, 42)]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        temperature=schedule.start,
        learning_rate=1e-4, max_steps=6, logging_steps=1,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    )
    callback = TemperatureCallback(schedule)
    trainer = GRPOTrainer(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
        reward_funcs=evens, args=config, train_dataset=data, callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()
