"""sampling settings: the sampler works with what it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.settings import Sampling

SEGMENT = "sampling settings"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    asked = record.settings.sampling
    for number, generation in enumerate(record.generations):
        for call in generation.calls:
            if call.used is None:
                raise NotSeen("the sampler's settings were not seen")
            said = ", ".join(_off(asked, call.used))
            compare = partial(_compare, asked, call.used)
            yield Instance(f"generation {number + 1}", compare, partial(str, said))


def _compare(asked: Sampling, used: Sampling, **changed: Any) -> Gap | None:
    wanted = replace(asked, **changed)
    return None if changed and wanted == asked else different(len(_off(wanted, used)))


def _off(asked: Sampling, used: Sampling) -> list[str]:
    return [
        f"{field.name}: {getattr(asked, field.name)} asked, {getattr(used, field.name)} used"
        for field in fields(Sampling)
        if getattr(asked, field.name) != getattr(used, field.name)
        # 0: not known on one side
        and (field.name != "max_new_tokens" or (asked.max_new_tokens and used.max_new_tokens))
    ]
