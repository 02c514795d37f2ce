"""Rollouts that are drawn and scored several times before a batch is made of them, as by dynamic sampling (arXiv 2503.14476)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlvr_debug.replay.record import Batch, RewardCall


@dataclass(frozen=True)
class Draw:
    """Rollouts that were scored together: their rows, completions in tokens and as messages, rewards, [B, K], and the calls."""

    rows: Sequence[dict[str, Any]]
    ids: Sequence[Sequence[int]]
    messages: Sequence[list[Any]] | None
    rewards: Tensor
    calls: Sequence[RewardCall]


def trained_places(
    draws: Sequence[Draw], batch: Batch, pad_id: int
) -> list[tuple[int, int]] | None:
    """Return of each row of the batch which draw it is of and its row there, a whole draw where one fits; None where one is of no draw."""
    left = {(number, row) for number, draw in enumerate(draws) for row in range(len(draw.ids))}
    places: list[tuple[int, int]] = []
    for row, ids in enumerate(batch.completion_ids.tolist()):
        fits = [
            (number, other)
            for number, other in left
            for own in [[*draws[number].ids[other]]]
            if ids[: len(own)] == own and all(token == pad_id for token in ids[len(own) :])
        ]
        if not fits:
            return None
        before = places[-1][0] if places else -1
        places.append(min(fits, key=lambda p: (p[0] != before, p[1] != row, -p[0], p[1])))
        left.remove(places[-1])
    return places
