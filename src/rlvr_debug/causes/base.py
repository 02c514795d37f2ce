"""What a hypothesis is: a claimed cause, the interventions that test it, and the probes that see its mechanism.

It is data, read from its folder's cause.yaml. Code elsewhere never asks which hypothesis it has: the effect of its
arms is judged alike for all (verdicts/decide.py), and so is its mechanism.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlvr_debug.errors import InputError, hint

__all__ = [
    "Hypothesis",
    "Intervention",
    "Mechanism",
    "Precondition",
    "Times",
    "Unseen",
    "built",
    "check_names",
    "hypothesis_of",
    "mechanism_of",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Times:
    """A setting that an intervention multiplies: the case's value by `times`.

    Where the case's value is 0, the control's is multiplied by `of_zero` (by default `times`); where a setting
    has no value at all, `otherwise` is the value.
    """

    times: float
    of_zero: float | None = None
    otherwise: float | None = None


@dataclass(frozen=True)
class Intervention:
    """One arm: what it changes about the case.

    swap: stages that are put right; faults: variants that stages are given instead; training, rollouts,
    options: settings by name, each a value or Times; environment: another one; combined: names of arms whose
    changes come first. trainer: those that it is for: any, our own, or others. fails: of a localiser that claims of a simpler setting that it learns, an
    arm of which it claims the opposite.
    """

    name: str
    swap: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    rollouts: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    combined: tuple[str, ...] = ()
    trainer: Literal["any", "own", "others"] = "any"
    fails: bool = False

    @property
    def settings(self) -> bool:
        """Whether it changes more than stages."""
        return bool(self.training or self.rollouts or self.options or self.environment)


@dataclass(frozen=True)
class Unseen:
    """Why a log may hide the cause of a training reward that stays flat beside healthy metrics.

    rank: how well it fits that symptom, 1 for the best; why: the reason, as a sentence.
    """

    rank: int
    why: str


@dataclass(frozen=True)
class Precondition:
    """What a case must have for the hypothesis to be about it.

    training: a setting of its training that is not 0; lacking: a case without it, in words.
    """

    training: str
    lacking: str


@dataclass(frozen=True)
class Hypothesis:
    """A claim with its texts, arms and probes.

    kind: cause, or localiser (it says where a failure occurs, and never competes as a cause). number: in the
    original notes, where two were used twice. answer: the claim, once validated, in a plain sentence to the
    owner of the run. probes: the mechanism is present where one of them fails. prerequisites: slugs that are
    tested in an earlier phase. interactions: slugs whose interventions may change this one's. simpler_learns:
    what a localiser claims of its simpler setting: that it learns while the case does not, or that it fails
    too. by_sampler: no log of a trainer shows the mechanism, the sampler's own log-probabilities do.
    on_records: its first probe runs on what any trainer recorded of its first steps. symptom: a column of runs.csv
    that is extreme where the cause is at work, and may be so where another one is (verdicts/symptoms.py).
    precondition: without it, and without the mechanism or an arm that changes anything, it is not applicable.
    """

    slug: str
    number: str
    kind: str
    priority: str
    claim: str
    answer: str
    explanation: str
    root_cause: str
    methods: str
    diagnostics: str
    success: str
    invalidation: str
    alternatives: tuple[str, ...]
    cost: str
    next_steps: str
    arms: tuple[Intervention, ...]
    probes: tuple[str, ...] = ()
    prerequisites: tuple[str, ...] = ()
    interactions: tuple[str, ...] = ()
    simpler_learns: bool = False
    unseen: Unseen | None = None
    by_sampler: bool = False
    on_records: bool = False
    symptom: str | None = None
    precondition: Precondition | None = None

    def arms_on(self, trainer: str) -> tuple[Intervention, ...]:
        """Return the arms that are for this trainer, in the folder's order."""
        return tuple(
            arm
            for arm in self.arms
            if arm.trainer == "any" or (arm.trainer == "own") == (trainer == "own")
        )


def hypothesis_of(slug: str, told: Mapping[str, Any]) -> Hypothesis:
    """Return what a cause.yaml tells that fits its schema."""
    arms = tuple(map(_intervention, told.get("arms", ())))
    parts = {
        key: built(kind, told[key])
        for key, kind in (("unseen", Unseen), ("precondition", Precondition))
        if key in told
    }
    return built(Hypothesis, {**told, "slug": slug, "arms": arms, **parts})


def _intervention(told: Mapping[str, Any]) -> Intervention:
    kinds = {
        kind: {
            name: built(Times, value) if isinstance(value, dict) and name != "weights" else value
            for name, value in told[kind].items()
        }
        for kind in ("training", "rollouts", "options")
        if kind in told
    }
    return built(Intervention, {**told, **kinds})


def built(kind: type[T], told: Mapping[str, Any]) -> T:
    """Return the data class with these values, lists as tuples."""
    return kind(**{key: _tuples(value) for key, value in told.items()})


def check_names(path: Path, key: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError, one line, for the first of the names in a cause.yaml that stands for nothing."""
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(f"{path}: key '{key}' names '{name}': {hint(name, known)}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Mechanism:
    """What the probes of a hypothesis say. measured: measurement by probe; missing: probes that were not run."""

    measured: Mapping[str, Mapping[str, Any]]
    missing: tuple[str, ...] = ()

    @property
    def present(self) -> bool | None:
        """True where a probe fails, None where that cannot be told."""
        if not all(found["passed"] for found in self.measured.values()):
            return True
        return None if self.missing or not self.measured else False

    @property
    def text(self) -> str:
        """The measurements as sentences; empty for a hypothesis without probes."""
        return "; ".join(
            [_sentence(name, found) for name, found in self.measured.items()]
            + [f"probe {name} was not run" for name in self.missing]
        )


def mechanism_of(
    hypothesis: Hypothesis, measurements: Mapping[str, Mapping[str, Any]]
) -> Mechanism:
    """Return what the case's measurements, by probe, say of the hypothesis' mechanism."""
    found = {name: measurements[name] for name in hypothesis.probes if name in measurements}
    return Mechanism(found, tuple(name for name in hypothesis.probes if name not in found))


def _sentence(name: str, measurement: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key} {value:.3g}" for key, value in measurement["measured"].items())
    return f"probe {name} {'passes' if measurement['passed'] else 'fails'}: {values}"
