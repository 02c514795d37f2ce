"""sampling settings: the sampler works with what it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
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
            used = call.used

            def compare(used: Sampling = used, **knobs: Any) -> Gap | None:
                wanted = replace(asked, **knobs)
                if knobs and wanted == asked:
                    return None
                return different(len(_off(wanted, used)))

            yield Instance(
                f"generation {number + 1}",
                compare,
                lambda used=used: ", ".join(_off(asked, used)),  # type: ignore[misc]
            )


def _off(asked: Sampling, used: Sampling) -> list[str]:
    return [
        f"{field.name}: {getattr(asked, field.name)} asked, {getattr(used, field.name)} used"
        for field in fields(Sampling)
        if getattr(asked, field.name) != getattr(used, field.name)
    ]
