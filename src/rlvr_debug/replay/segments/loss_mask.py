"""loss mask: the loss counts the tokens that the sampler wrote, and no others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rlvr_debug.replay.finding import Place
from rlvr_debug.replay.judge import Gap, Instance
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, rollouts, trained

SEGMENT = "loss mask"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        rows = trained(batch_of(generation))
        wrong: Counter[str] = Counter()
        for rollout, (_, completion, counted) in zip(sampled, rows, strict=True):
            wanted = expected(record, rollout, len(completion))
            for place, (got, want) in enumerate(zip(counted, wanted, strict=True)):
                if got != want:
                    how = "counted" if got else "not counted"
                    wrong[f"{_role(record, rollout, place)} tokens {how}"] += 1
        said = ", ".join(f"{count} {what}" for what, count in wrong.items())
        for row, (rollout, (_, completion, counted)) in enumerate(zip(sampled, rows, strict=True)):

            def compare(
                rollout: Rollout = rollout,
                width: int = len(completion),
                got: list[bool] = counted,
                place: tuple[int, int] = (number, row),
                how: str = "",
            ) -> Gap:
                wanted = expected(record, rollout, width, how)
                off = [n for n, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
                return Gap(
                    math.inf if off else 0.0,
                    len(off),
                    tuple(Place(*place, token) for token in off),
                )

            yield Instance(f"generation {number + 1}", compare, lambda said=said: said)  # type: ignore[misc]


def expected(record: Record, rollout: Rollout, width: int, how: str = "") -> list[bool]:
    """Return which tokens of a completion, [width], the loss is to count; `how` departs from that."""
    settings, own = record.settings, rollout.completion
    wrote = rollout.completion_wrote
    ended = bool(own) and own[-1] in (*settings.eos_ids, settings.pad_id)
    masks = settings.mask_truncated_completions
    if how == "cut replies counted":
        masks = False
    if how == "cut replies not counted":
        masks = True
    if masks and not ended:
        wrote = [False] * len(own)
    last = len(rollout.turns[-1].output)
    found = {
        "eos not counted": [
            w and token not in settings.eos_ids for w, token in zip(wrote, own, strict=True)
        ],
        "tool tokens counted": [True] * len(own),
        "padding counted": wrote + [True] * (width - len(own)),
        "all counted": [True] * width,
        "first token not counted": [False, *wrote[1:]],
        "last token not counted": [*wrote[:-1], False],
        "last turn": [False] * (len(own) - last) + wrote[len(own) - last :],
        "shifted": [*wrote[1:], False],
        "nothing": [False] * len(own),
    }.get(how, wrote)
    return (found + [False] * width)[:width]


def _role(record: Record, rollout: Rollout, place: int) -> str:
    own = rollout.completion
    if place >= len(own):
        return "padding"
    if not rollout.completion_wrote[place]:
        return "tool"
    return "end-of-turn" if own[place] in record.settings.eos_ids else "assistant"
