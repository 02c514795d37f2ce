"""weights between steps: they change in the optimizer's step, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

from rlvr_debug.replay.judge import Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record

SEGMENT = "weights between steps"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    before = 0
    for number, update in enumerate(record.updates):
        numbers = [micro.weights for micro in update.micro_batches]
        written = bool(numbers) and numbers[0] != before
        within = len(set(numbers)) > 1

        def said(
            written: bool = written, within: bool = within, touched: bool = update.touched
        ) -> str:
            found = {
                "they were written outside of the optimizer": written,
                "they change between two micro-batches of one update": within,
                "they change between the last backward pass and the optimizer's step": touched,
            }
            return "; ".join(text for text, wrong in found.items() if wrong)

        yield Instance(
            f"update {number + 1}",
            lambda wrong=written + within + update.touched, **_: different(wrong),
            said,
        )
        before = update.after
