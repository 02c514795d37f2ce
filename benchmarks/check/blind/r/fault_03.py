"""Short-answer training with a linear decay of the learning rate and a log of the rate of each step."""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

QUESTIONS = [
    "Name a colour.", "Name a fruit.", "How many legs has a dog?", "Is snow cold?", "Name a month.",
    "What follows Monday?", "Is fire hot?", "Name a metal.", "Count to three.", "Name a planet.",
    "What is 2 + 2?", "Name a tree.",
]


def brevity(completion_ids, **kwargs):
    """Best at six tokens, falling off on both sides."""
    return [1.0 - abs(len(ids) - 6) / 16 for ids in completion_ids]


def vowels(completions, **kwargs):
    texts = [completion[0]["content"].lower() for completion in completions]
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in texts]


class ScheduleCallback(TrainerCallback):
    """Advances the linear schedule after each update and keeps the rates for the report."""

    def __init__(self):
        self.rates = []

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.step()


class LinearDecayTrainer(GRPOTrainer):
    """Decays linearly from the initial rate to zero over `decay_steps` updates."""

    decay_steps = 12

    def create_scheduler(self, num_training_steps, optimizer=None):
        optimizer = optimizer if optimizer is not None else self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0.0, 1.0 - step / self.decay_steps)
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler


dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in QUESTIONS]})
schedule = ScheduleCallback()
trainer = LinearDecayTrainer(
    model=MODEL,
    reward_funcs=[brevity, vowels],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
        learning_rate=3e-4, max_steps=3, logging_steps=1, seed=4,
    ),
    train_dataset=dataset,
    callbacks=[schedule],
)
trainer.train()
print("learning rates:", schedule.rates)
