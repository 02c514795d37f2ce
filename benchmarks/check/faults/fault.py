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


# puts a function into a case
Way = Callable[[Case, Callable[..., Any]], Case]
_READ: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("faults.yaml"))


def itself(case: Case, change: Callable[[Case], Case]) -> Case:
    """The way of a function from case to case."""
    return change(case)


def faulty(by: Way = itself) -> Callable[[Callable[..., Any]], Fault]:
    """Make a fault of a function, under its name, and of what faults.yaml has of that. by: the way that puts it into a case.

    Raises ValueError for a bad entry.
    """

    def make(function: Callable[..., Any]) -> Fault:
        name = function.__name__.replace("_", "-")
        known, what = dict(_READ[name]), (function.__doc__ or "").strip().splitlines()
        places, causes = (tuple(known.pop(key, ())) for key in ("segments", "causes"))
        if unknown := set(places) - set(SEGMENTS):
            raise ValueError(f"{name}: segments {sorted(unknown)}, expected some of {SEGMENTS}")
        if not what or (len(places) > 1) != bool(known.get("why")):
            raise ValueError(
                f"{name}: expected a docstring, and a reason where segments are several"
            )
        return Fault(name, what[0], lambda case: by(case, function), places, causes=causes, **known)

    return make
