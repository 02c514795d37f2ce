"""GRPO with length-balanced micro-batches (equal padding work in every accumulation step)."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def deal_by_length(batch, parts):
    """Deals the rows, longest first, to `parts` micro-batches in turn."""
    lengths = batch["completion_mask"].sum(1)
    order = torch.argsort(lengths, descending=True, stable=True)
    size = len(order) // parts
    out = []
    for part in range(parts):
        rows = order[part::parts]
        piece = {}
        for key, value in batch.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                piece[key] = value
            elif value.dim() == 1:
                piece[key] = value[part * size : (part + 1) * size]
            else:
                piece[key] = value[rows]
        out.append(piece)
    return out


class BalancedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = deal_by_length(batch, parts)
        return self._buffered_inputs[self._step % parts]


def entropy_of_text(completions, **kwargs):
    return [len(set(c[0]["content"])) / (len(c[0]["content"]) + 1) for c in completions]


def concise(completion_ids, **kwargs):
    return [-len(ids) / 30 for ids in completion_ids]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Summarise report {i} in a line."}] for i in range(12)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=3e-4, per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4,
        max_completion_length=24, temperature=1.1, gradient_checkpointing=False, logging_steps=1,
    )
    BalancedTrainer(
        model=MODEL, reward_funcs=[entropy_of_text, concise], args=args, train_dataset=data
    ).train()


if __name__ == "__main__":
    main()
