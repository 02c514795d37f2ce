"""What a planted fault is: a user's mistake, and where a check should find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.check.case import Case
from rlvr_debug.files import read_yaml
from rlvr_debug.replay import segments

SEGMENTS = tuple(each.name for each in segments.SEGMENTS)

# a variant of the library; the first blind benchmark; another row of the list of known bugs; made up here
Origin = Literal["library", "benchmark", "known", "own"]


@dataclass(frozen=True)
class Fault:
    """A change to a healthy case.

    `segments` are those that may rightly be named first: several only where `why` says what makes them equal. `causes`
    are the slugs of the hypotheses that it belongs to, if any, `setting` and `config` what it needs to show, `since` the
    first TRL release that has the seam. One whose `precision` is float32 is too small for bfloat16 to show, and
    `processes` how many have to train together.
    """

    name: str
    what: str
    plant: Callable[[Case], Case]
    segments: tuple[str, ...]
    origin: Origin = "own"
    source: str = ""
    why: str = ""
    causes: tuple[str, ...] = ()
    setting: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    since: str = "0.22.2"
    precision: Literal["any", "float32"] = "any"
    processes: int = 1

    def planted(self, case: Case) -> Case:
        """Return the case with the fault in it."""
        return self.plant(case.told(**self.config))


# puts a function, or what else a fault is made of, into a case
Way = Callable[[Case, Any], Case]
_READ: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("faults.yaml"))
_TUPLES = ("segments", "causes")
_MADE: dict[str, Fault] = {}


def itself(case: Case, change: Callable[[Case], Case]) -> Case:
    """The way of a function from case to case."""
    return change(case)


def faulty(by: Way = itself) -> Callable[[Callable[..., Any]], Fault]:
    """Make a fault of a function, under its name. by: the way that puts it into a case."""
    return lambda function: _made(function.__name__, by, function)


def faults(by: Way, **changes: Any) -> None:
    """Make a fault of each of these short functions or values, under its name."""
    for name, change in changes.items():
        _made(name, by, change)


def _made(function: str, by: Way, change: Any) -> Fault:
    """Make a fault of what faults.yaml has of it. Raise ValueError for a bad entry."""
    name = function.replace("_", "-")
    told = {**_READ[name], **{key: tuple(_READ[name].get(key, ())) for key in _TUPLES}}
    if unknown := set(told["segments"]) - set(SEGMENTS):
        raise ValueError(f"{name}: segments {sorted(unknown)}, expected some of {SEGMENTS}")
    if (len(told["segments"]) > 1) != bool(told.get("why")):
        raise ValueError(f"{name}: expected a reason where segments are several")
    made = _MADE[name] = Fault(name, plant=lambda case: by(case, change), **told)
    return made


def in_order() -> dict[str, Fault]:
    """Return the faults that were made, in the order of faults.yaml, which is that of a step."""
    return {name: _MADE[name] for name in _READ}
