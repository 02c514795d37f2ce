"""Temperature annealing: explore at first, then sharpen the rollouts step by step."""
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TemperatureSchedule(TrainerCallback):
    """Moves the temperature linearly from `start` to `end` over the run."""

    def __init__(self, start, end):
        self.start, self.end = start, end
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        done = state.global_step / max(state.max_steps - 1, 1)
        self.trainer.generation_config.temperature = self.start + (self.end - self.start) * done


def vowels(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [sum(c in "aeiou" for c in text.lower()) / max(len(text), 1) for text in texts]


def main():
    schedule = TemperatureSchedule(start=1.0, end=0.5)
    words = ["sun", "rain", "snow", "wind", "fog", "hail", "storm", "cloud"]
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=vowels,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=20,
            temperature=1.0,
            learning_rate=1e-4,
            scale_rewards="batch",
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Tell me about the {word}."}]} for word in words]
        ),
        callbacks=[schedule],
    )
    schedule.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
