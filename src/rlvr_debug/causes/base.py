"""What a hypothesis is: a claimed cause, and the interventions that test it.

It is data, read from its folder's cause.yaml. Code elsewhere never asks which hypothesis it has: the effect of its
arms is judged alike for all (verdicts/decide.py), and so is its mechanism (replay/mechanism.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlvr_debug.errors import InputError, hint

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
    """A claim with its texts and arms.

    kind: cause, or localiser (it says where a failure occurs, and never competes as a cause). number: in the
    original notes, where two were used twice. answer: the claim, once validated, in a plain sentence to the
    owner of the run. prerequisites: slugs that are
    tested in an earlier phase. interactions: slugs whose interventions may change this one's. simpler_learns:
    what a localiser claims of its simpler setting: that it learns while the case does not, or that it fails
    too. by_sampler: no log of a trainer shows the mechanism, the sampler's own log-probabilities do.
    symptom: a column of runs.csv
    that is extreme where the cause is at work, and may be so where another one is (verdicts/symptoms.py).
    precondition: without it, and without the mechanism or an arm that changes anything, it is not applicable.
    part: of what no hypothesis names, the stage or the setting (unnamed.py).
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
    prerequisites: tuple[str, ...] = ()
    interactions: tuple[str, ...] = ()
    simpler_learns: bool = False
    unseen: Unseen | None = None
    by_sampler: bool = False
    symptom: str | None = None
    precondition: Precondition | None = None
    part: str | None = None

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
