"""weights between steps: they change in the optimizer's step, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "weights between steps"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    if not record.weights:
        raise NotSeen("the policy's weights were not seen")
    before = 0
    for number, update in enumerate(record.updates):
        numbers = [micro.weights for micro in update.micro_batches] or [update.before]
        touched = update.touched or numbers[-1] != update.before
        found = {
            "they were written outside of the optimizer": numbers[0] != before,
            "they change between two micro-batches of one update": len(set(numbers)) > 1,
            "they change between the last backward pass and the optimizer's step": touched,
        }
        wrong = [text for text, is_so in found.items() if is_so]
        held = record.weights
        rounded = all(
            torch.equal(w, held[before][n].bfloat16().to(w.dtype))
            for n, w in held[numbers[0]].items()
        )
        begun = numbers[0] != before and _of(record, numbers[0], 0)
        compare = partial(_wrong, len(wrong), {"bfloat16": rounded, "beginning": begun})
        where = (
            f"after update {number}" if number and numbers[0] != before else f"update {number + 1}"
        )
        yield Instance(where, compare, partial(str, "; ".join(wrong)))
        before = update.after


def _of(record: Record, number: int, other: int) -> bool:
    """Return whether all trained weights are those of another number."""
    one, two = record.weights[number], record.weights[other]
    return all(torch.equal(one[name], two[name]) for name in record.trainable)


def _wrong(
    count: int, written: Mapping[str, bool], *, how: Literal["", "bfloat16", "beginning"] = ""
) -> Gap:
    return different(not written[how] if how else count)


KNOBS = knobs_of(_wrong)
