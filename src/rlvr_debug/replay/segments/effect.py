"""effect: all may be as it is set, and still nothing can be learned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record

SEGMENT = "effect"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    batches = [g.batch for g in record.generations if g.batch is not None]
    found = {
        "no weight is trainable": not record.trainable,
        "the learning rate is set to 0": record.settings.learning_rate == 0,
        "every advantage is 0": bool(batches) and not any(b.advantages.any() for b in batches),
        "the loss counts no token": bool(batches) and not any(b.loss_mask.any() for b in batches),
    }
    wrong = [text for text, is_so in found.items() if is_so]
    compare = partial(_compare, wrong)
    yield Instance("all of the record", compare, partial(str, "; ".join(wrong)))


def _compare(wrong: list[str], of: str = "") -> Gap:
    return different(of not in wrong if of else len(wrong))
