"""Training with a checkpoint and an evaluation at each step; the evaluation uses averaged weights.

The average is swapped in for the evaluation only. Gradient norms of the parts of the network are logged as well.
"""

import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AveragedTrainer(GRPOTrainer):
    decay = 0.7

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.averaged_updates = 0

    @torch.no_grad()
    def update_average(self):
        for name, p in self.model.named_parameters():
            self.average[name].lerp_(p, 1 - self.decay)
        self.averaged_updates += 1

    @torch.no_grad()
    def exchange(self):
        """Swaps model and average; twice is the identity."""
        for name, p in self.model.named_parameters():
            held = p.detach().clone()
            p.copy_(self.average[name])
            self.average[name].copy_(held)

    def evaluate(self, *args, **kwargs):
        self.exchange()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.exchange()


class Observer(TrainerCallback):
    def __init__(self):
        self.trainer = None
        self.norms = defaultdict(list)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        squares = defaultdict(float)
        for name, p in model.named_parameters():
            if p.grad is not None:
                squares[".".join(name.split(".")[:3])] += p.grad.detach().pow(2).sum().item()
        for part, square in squares.items():
            self.norms[part].append(square ** 0.5)

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.update_average()


def neat(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(sum(c.isalpha() or c in " ." for c in text) / max(len(text), 1) - 0.003 * len(text))
    return rewards


def questions(names):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Where is the {name}?"}] for name in names]})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        observer = Observer()
        trainer = AveragedTrainer(
            model=MODEL,
            reward_funcs=neat,
            args=GRPOConfig(
                output_dir=folder, use_cpu=True, report_to=[],
                save_strategy="steps", save_steps=1, save_total_limit=2,
                eval_strategy="steps", eval_steps=1, eval_on_start=True,
                per_device_train_batch_size=8, per_device_eval_batch_size=4,
                num_generations=4, num_generations_eval=2, max_completion_length=16,
                learning_rate=5e-4, max_steps=3, logging_steps=1,
            ),
            train_dataset=questions(["key", "dog", "well", "boat", "map", "tower", "sheep", "knife"]),
            eval_dataset=questions(["horse", "ladder"]),
            callbacks=[observer],
        )
        observer.trainer = trainer
        trainer.train()
        print({part: [round(norm, 4) for norm in norms] for part, norms in observer.norms.items()})
