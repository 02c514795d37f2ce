"""GRPO with micro-batches of equal work: rows dealt by length in a snake."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def deal_by_length(batch, parts):
    """Deals the rows, longest first, forth and back over the micro-batches; keys with one value per row follow."""
    lengths = batch["completion_mask"].sum(1)
    total = len(lengths)
    hands = [[] for _ in range(parts)]
    for rank, row in enumerate(torch.argsort(lengths, descending=True, stable=True).tolist()):
        lap, seat = divmod(rank, parts)
        hands[seat if lap % 2 == 0 else parts - 1 - seat].append(row)
    out = []
    for hand in hands:
        rows = torch.tensor(hand)
        piece = {}
        for key, value in batch.items():
            if torch.is_tensor(value) and value.dim() and len(value) == total:
                piece[key] = value[rows]
            elif isinstance(value, list) and len(value) == total:
                piece[key] = [value[i] for i in hand]
            else:
                piece[key] = value
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
        {"prompt": [[{"role": "user", "content": f"Summarise memo {i + 20} in a line."}] for i in range(12)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=3e-4, per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4, num_generations=4,
        max_completion_length=24, temperature=1.1, gradient_checkpointing=False, logging_steps=1,
    )
    BalancedTrainer(
        model=MODEL, reward_funcs=[entropy_of_text, concise], args=args, train_dataset=data
    ).train()


if __name__ == "__main__":
    main()
