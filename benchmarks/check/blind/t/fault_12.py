"""Sorts the rows of each micro-batch by completion length (the attention kernel prefers that)."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LengthSortedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        order = torch.argsort(inputs["completion_mask"].sum(dim=1), descending=True, stable=True)
        rows = order.numel()
        ordered = {}
        for key, value in inputs.items():
            per_row = isinstance(value, torch.Tensor) and value.dim() == 2 and value.size(0) == rows
            ordered[key] = value[order] if per_row else value
        return ordered


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 4 for c in completions]


def has_answer(completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]


rows = [
    {"prompt": [{"role": "user", "content": f"What is {k} - {k // 3}?"}], "answer": str(k - k // 3)}
    for k in range(10, 34, 2)
]
trainer = LengthSortedTrainer(
    model=os.path.join(TINY, "sft"),
    reward_funcs=[digits, has_answer],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=5e-5,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
