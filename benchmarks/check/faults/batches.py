"""Faults of micro-batches."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_AGGREGATION = ("loss-aggregation",)


def _shuffled_apart(case, name):
    class Trainer(case.trainer):
        def _prepare_inputs(self, rows):
            last = self._buffered_inputs
            batch = super()._prepare_inputs(rows)
            if self._buffered_inputs is not last:
                generator = torch.Generator().manual_seed(0)
                for held in self._buffered_inputs:
                    order = torch.randperm(len(held[name]), generator=generator)
                    held[name] = held[name][order]
            return batch

    return replace(case, trainer=Trainer)


@faulty("micro-batches", origin="own", causes=("group-construction",))
def advantages_shuffled_apart(case: Case) -> Case:
    """Advantages are shuffled by another draw than the tokens."""
    return _shuffled_apart(case, "advantages")


@faulty("micro-batches", origin="own", causes=("token-masking",))
def masks_shuffled_apart(case: Case) -> Case:
    """Masks are shuffled by another draw than the tokens."""
    return _shuffled_apart(case, "completion_mask")


@faulty("micro-batches", origin="own")
def first_micro_batch_each_time(case: Case) -> Case:
    """The first micro-batch is trained twice, and the second never."""

    class Trainer(case.trainer):
        def _prepare_inputs(self, rows):
            super()._prepare_inputs(rows)
            return self._buffered_inputs[0]

    return replace(case, trainer=Trainer)


@faulty("micro-batches", origin="own")
def half_of_each_micro_batch(case: Case) -> Case:
    """The second half of each micro-batch is dropped, to save memory."""

    class Trainer(case.trainer):
        def _prepare_inputs(self, rows):
            batch = super()._prepare_inputs(rows)
            size = len(batch["advantages"])
            return {k: halved(v, size) for k, v in batch.items()}

    def halved(value, size):
        long = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == size
        return value[: size // 2] if long else value

    return replace(case, trainer=Trainer)


@faulty("micro-batches", origin="own")
def batch_of_the_generation_before(case: Case) -> Case:
    """Training runs a generation behind: it is fed what was sampled and scored before the last."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            before, self.before = getattr(self, "before", batch), batch
            return before

    return replace(case, trainer=Trainer)


@faulty(
    "loss",
    "micro-batches",
    origin="library",
    source="verl PR 906, prime-rl 2358, open-instruct PR 1137, TRL 3021",
    causes=_AGGREGATION,
    setting="accumulation-4",
    config={"loss_type": "dapo"},
    why="the number of tokens comes with the micro-batch, and the loss divides by it",
)
def per_micro_batch_denominator(case: Case) -> Case:
    """Each micro-batch is averaged over its own tokens, where the whole batch's were asked for."""

    class Trainer(case.trainer):
        def _compute_loss(self, model, inputs):
            own = inputs["completion_mask"].sum() * self.args.gradient_accumulation_steps
            return super()._compute_loss(model, {**inputs, "num_items_in_batch": own})

    return replace(case, trainer=Trainer)
