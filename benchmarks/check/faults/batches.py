"""Faults of micro-batches."""

from __future__ import annotations

import torch

from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import generated, losing, method, the_one_before

_prepared = method("_prepare_inputs")


def _shuffled_apart(case, name):
    def shuffled(trainer, usual, rows):
        last = trainer._buffered_inputs
        batch = usual(rows)
        if trainer._buffered_inputs is not last:
            generator = torch.Generator().manual_seed(0)
            for held in trainer._buffered_inputs:
                order = torch.randperm(len(held[name]), generator=generator)
                held[name] = held[name][order]
        return batch

    return _prepared(case, shuffled)


faults(
    _shuffled_apart,
    advantages_shuffled_apart="advantages",
    masks_shuffled_apart="completion_mask",
)


@faulty(_prepared)
def first_micro_batch_each_time(trainer, usual, rows):
    usual(rows)
    return trainer._buffered_inputs[0]


@faulty(_prepared)
def half_of_each_micro_batch(trainer, usual, rows):
    batch = usual(rows)
    size = len(batch["advantages"])

    def halved(value):
        long = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == size
        return value[: size // 2] if long else value

    return {name: halved(value) for name, value in batch.items()}


@faulty(generated)
def batch_of_the_generation_before(trainer, batch):
    return the_one_before(trainer, batch)


@faulty(losing)
def per_micro_batch_denominator(trainer, inputs):
    count = inputs["completion_mask"].sum() * trainer.args.gradient_accumulation_steps
    return {**inputs, "num_items_in_batch": count}
