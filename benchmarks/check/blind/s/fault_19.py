"""GRPO with an optimizer that survives bad batches.

Once in a while a batch of rollouts gives a gradient that is orders of magnitude larger than usual, and the run does
not recover. `GuardedAdamW` tracks the usual norm and skips the update when the current one is far above it.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that skips updates whose gradient norm is a spike."""

    def __init__(self, params, spike=8.0, momentum=0.95, **kwargs):
        super().__init__(params, **kwargs)
        self.spike = spike
        self.momentum = momentum
        self.usual = 0.0
        self.skipped = 0

    def _norm(self):
        squares = [
            p.grad.detach().float().pow(2).sum() for g in self.param_groups for p in g["params"] if p.grad is not None
        ]
        return torch.stack(squares).sum().sqrt().item()

    def step(self, closure=None):
        norm = self._norm()
        if norm > self.spike * self.usual:
            self.skipped += 1
            return None
        self.usual = self.momentum * self.usual + (1 - self.momentum) * norm
        return super().step(closure)


def groups(model, weight_decay):
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def punctuation(completions, **kwargs):
    """End with a full stop, use a comma, do not ramble."""
    rewards = []
    for text in completions:
        text = text.rstrip()
        rewards.append(0.5 * text.endswith(".") + 0.2 * ("," in text) - len(text) / 60 + 0.01 * len(set(text)))
    return rewards


def main():
    openings = ["Once upon a time", "In the end", "On Mondays", "After the rain", "By the lake", "At noon"]
    dataset = Dataset.from_dict({"prompt": openings})
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=20,
            max_steps=3,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        optimizer = GuardedAdamW(groups(model, 0.01), lr=1e-4, betas=(0.9, 0.99))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=punctuation,
            args=args,
            train_dataset=dataset,
            processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
            optimizers=(optimizer, scheduler),
        )
        trainer.train()


if __name__ == "__main__":
    main()
