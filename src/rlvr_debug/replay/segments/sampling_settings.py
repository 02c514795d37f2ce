"""sampling settings: the sampler works with what it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Annotated

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.settings import Sampling
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "sampling settings"
_FIELDS = tuple(field.name for field in fields(Sampling))
_KNOWN_OR_NOT = ("max_new_tokens", "ends")


def instances(record: Record, _: Network) -> Iterator[Instance]:
    asked = record.settings.sampling
    for number, generation in enumerate(record.generations):
        for call in generation.calls:
            if call.used is None:
                raise NotSeen("the sampler's settings were not seen")
            off = _off(asked, call.used)
            if call.rows and call.used.max_new_tokens < asked.max_new_tokens:
                off.pop("max_new_tokens", None)  # of one turn of a function that makes rollouts
            said = partial(str, ", ".join(off.values()))
            yield Instance(f"generation {number + 1}", partial(_compare, list(off)), said)


def _compare(off: list[str], *, of: Annotated[str, OneOf(lambda: _FIELDS)] = "") -> Gap:
    return different(off != [of] if of else len(off))


def _off(asked: Sampling, used: Sampling) -> dict[str, str]:
    """Return what differs by name, in words. A limit of 0 tokens, and no ends, are not known."""
    found = {}
    for name in _FIELDS:
        one, other = getattr(asked, name), getattr(used, name)
        known = name not in _KNOWN_OR_NOT or (one and other)
        if one != other and known:
            found[name] = f"{name}: {one} asked, {other} used"
    return found


KNOBS = knobs_of(_compare)
