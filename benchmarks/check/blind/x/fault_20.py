"""GRPO with per-tensor gradient statistics (the loss spikes of spring were found in one layer's norm weights)."""

import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GradStatsMixin:
    """Clips and keeps each tensor's norm in one pass over the parameters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.grad_history = defaultdict(list)

    def _clip_grad_norm(self, model):
        squares = []
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            norm = torch.nn.utils.clip_grad_norm_([p], self.args.max_grad_norm)
            self.grad_history[name].append(norm.item())
            squares.append(norm.detach() ** 2)
        return torch.stack(squares).sum().sqrt()


class StatsGRPOTrainer(GradStatsMixin, GRPOTrainer):
    def log(self, logs, *args, **kwargs):
        if self.grad_history:
            name = max(self.grad_history, key=lambda n: self.grad_history[n][-1])
            logs["grad/largest"] = self.grad_history[name][-1]
        return super().log(logs, *args, **kwargs)


def consonants(completions, **kwargs):
    return [sum(ch.isalpha() and ch.lower() not in "aeiou" for ch in c[0]["content"]) / 20 for c in completions]


def brief(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


def main():
    words = ["north", "amber", "stone", "cloud", "ember", "frost", "grain", "haven"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Rhyme with {w}:"}] for w in words]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=20, temperature=1.2, max_grad_norm=0.05, gradient_checkpointing=False, logging_steps=1,
    )
    StatsGRPOTrainer(model=MODEL, reward_funcs=[consonants, brief], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
