"""What a planted fault is: a user's mistake, and where a check should find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.check.case import Case

__all__ = ["SEGMENTS", "Fault", "Origin", "faulty"]

# of a training step, in its order
SEGMENTS = (
    "processes",
    "groups",
    "prompt",
    "sampling settings",
    "sampler",
    "tool turns",
    "tokens",
    "loss mask",
    "rewards",
    "advantages",
    "old log-probabilities",
    "reference log-probabilities",
    "importance weights",
    "micro-batches",
    "model inputs",
    "policy log-probabilities",
    "loss",
    "gradient",
    "clip",
    "weights between steps",
    "optimizer step",
    "saved weights",
    "effect",
)

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
    origin: Origin
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


def faulty(
    *segments: str, origin: Origin = "own", **known: Any
) -> Callable[[Callable[[Case], Case]], Fault]:
    """Make a fault of a function from case to case, under the function's name. Raises ValueError for a bad entry."""

    def make(plant: Callable[[Case], Case]) -> Fault:
        name, what = plant.__name__.replace("_", "-"), (plant.__doc__ or "").strip().splitlines()
        if unknown := set(segments) - set(SEGMENTS):
            raise ValueError(f"{name}: segments {sorted(unknown)}, expected some of {SEGMENTS}")
        if not what or (len(segments) > 1) != bool(known.get("why")):
            raise ValueError(
                f"{name}: expected a docstring, and a reason where segments are several"
            )
        return Fault(name, what[0], plant, segments, origin, **known)

    return make
