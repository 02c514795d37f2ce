"""loss mask: the loss counts the tokens that the sampler wrote, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from rlvr_debug.replay.finding import Place
from rlvr_debug.replay.judge import Gap, Instance, Segment, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import Rollout, batch_of, carried, rollouts, trained
from rlvr_debug.replay.variants import knobs_of
from rlvr_debug.sampling.alignment import carried as places_in

_Part = Literal["beginning", "kind", "prompt"]
_How = Literal[
    "",
    "cut replies counted",
    "cut replies not counted",
    "eos not counted",
    "tool tokens counted",
    "padding counted",
    "all counted",
    "first token not counted",
    "last token not counted",
    "last turn",
    "shifted",
    "nothing",
    "turned round",
    "first turn",
]


def _instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings)
        rows = trained(batch_of(generation))
        # the sequence may be another one: that is for `tokens` to say
        sampled = [_as_trained(record, each, *row) for each, row in zip(sampled, rows, strict=True)]
        masks = [counted for _, _, counted in rows]
        said = partial(_described, record, sampled, masks)
        for row, (rollout, mask) in enumerate(zip(sampled, masks, strict=True)):
            compare = partial(_compare, record, rollout, mask, (number, row))
            yield Instance(f"generation {number + 1}", compare, said)


def _as_trained(
    record: Record, rollout: Rollout, prompt: list[int], ids: list[int], mask: list[bool]
) -> Rollout:
    """Return the rollout in the tokens of the trained completion.

    Where the sequence is the one that was sampled, a token's place in it says who wrote it, wherever the completion
    begins. Else where a reply stands may not be certain: that place counts which the mask fits best. Of tokens that
    were replaced the mask is taken for right.
    """
    same = (prompt + ids)[: len(rollout.ids)] == rollout.ids
    if same and len(prompt) <= len(rollout.prompt):
        return replace(rollout, prompt=prompt)
    own = rollout.completion
    if ids[: len(own)] == own:
        return rollout
    aligned = _aligned(rollout, ids, mask)
    found = carried(rollout, ids)
    if found is rollout:
        return aligned
    return min(found, aligned, key=lambda each: len(_off(mask, expected(record, each, len(mask)))))


def _aligned(rollout: Rollout, ids: list[int], mask: list[bool]) -> Rollout:
    own = rollout.completion
    wrote = [
        mask[n] if place is None else rollout.completion_wrote[place]
        for n, place in enumerate(places_in(own, ids))
    ]
    start = len(rollout.prompt)
    return replace(rollout, ids=rollout.prompt + ids, wrote=rollout.wrote[:start] + wrote)


def _compare(
    record: Record,
    rollout: Rollout,
    got: list[bool],
    place: tuple[int, int],
    *,
    how: _How | _Part = "",
) -> Gap:
    if how == "beginning" or how == "kind" or how == "prompt":
        return different(not _fits(record, rollout, got, how))
    off = _off(got, expected(record, rollout, len(got), how))
    return replace(different(len(off)), places=tuple(Place(*place, token) for token in off))


def _fits(record: Record, rollout: Rollout, got: list[bool], how: _Part) -> bool:
    """Return whether a mask is the right one but for a part: what is behind a token, a kind of token, or the prompt's end."""
    right, own = expected(record, rollout, len(got)), rollout.completion
    off = _off(got, right)
    missing = bool(off) and all(right[n] and n < len(own) for n in off)
    if how == "beginning":
        return missing and any(got) and not any(got[off[0] :])
    if how == "kind":
        kinds = {own[n] for n in off} if missing else set()
        return len(kinds) == 1 and not any(
            g and own[n] in kinds for n, g in enumerate(got[: len(own)])
        )
    before = [*rollout.completion_wrote, True].index(True)
    return any(
        got == ([True] * n + right)[: len(got)] for n in range(1, len(rollout.prompt) + 1)
    ) or (before > 0 and got == [True] * before + right[before:])


def _off(got: list[bool], wanted: list[bool]) -> list[int]:
    return [n for n, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]


def _described(record: Record, sampled: list[Rollout], masks: list[list[bool]]) -> str:
    wrong: Counter[str] = Counter()
    for rollout, mask in zip(sampled, masks, strict=True):
        for place in _off(mask, expected(record, rollout, len(mask))):
            how = "counted" if mask[place] else "not counted"
            wrong[f"{_role(record, rollout, place)} tokens {how}"] += 1
    return ", ".join(f"{count} {what}" for what, count in wrong.items())


def expected(record: Record, rollout: Rollout, width: int, how: _How = "") -> list[bool]:
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
    first, last = (len(rollout.turns[n].output) for n in (0, -1))
    others: dict[_How, list[bool]] = {
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
        "turned round": [not w for w in wrote],
        "first turn": wrote[:first] + [False] * (len(own) - first),
    }
    return (others.get(how, wrote) + [False] * width)[:width]


def _role(record: Record, rollout: Rollout, place: int) -> str:
    own = rollout.completion
    if place >= len(own):
        return "padding"
    if not rollout.completion_wrote[place]:
        return "tool" if any(rollout.completion_wrote[:place]) else "prompt"
    return "end-of-turn" if own[place] in record.settings.eos_ids else "assistant"


MASK = Segment("loss mask", _instances, knobs_of(_compare), of="calls of the sampler")
