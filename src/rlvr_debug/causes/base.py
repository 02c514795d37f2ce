"""What a hypothesis is: a claimed cause, and the interventions that test it.

It is data, read from its folder's cause.yaml. Code elsewhere never asks which hypothesis it has: the effect of its
arms is judged alike for all (verdicts/decide.py), and so is its mechanism (replay/answer.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from rlvr_debug.blocks import A_MAPPING, Count, Entry, Flag, Keyed, Natural, Number, checked
from rlvr_debug.errors import InputError, hint

Names = tuple[str, ...]
Texts = Annotated[
    Annotated[str, Tag("text")] | Annotated[Mapping[str, str], A_MAPPING],
    Discriminator(lambda value: A_MAPPING.tag if isinstance(value, dict) else "text"),
]


@dataclass(frozen=True)
class Times(Entry):
    """A setting that an intervention multiplies: the case's value by `times`.

    Where the case's value is 0, the control's is multiplied by `of_zero` (by default `times`); where a setting
    has no value at all, `otherwise` is the value.
    """

    times: Number
    of_zero: Number | None = None
    otherwise: Number | None = None


Setting = Annotated[
    Annotated[Times, A_MAPPING] | Annotated[Any, Tag("value")],
    Discriminator(lambda value: A_MAPPING.tag if isinstance(value, dict) else "value"),
]


@dataclass(frozen=True)
class Intervention(Entry):
    """One arm: what it changes about the case.

    swap: stages that are put right; faults: variants that stages are given instead; training, rollouts,
    options: settings by name, each a value or Times; environment: another one; combined: names of arms whose
    changes come first. trainer: those that it is for: any, our own, or others. fails: this arm is expected not to learn.
    """

    name: str
    swap: Names = ()
    faults: Names = ()
    training: Mapping[str, Setting] = field(default_factory=dict)
    rollouts: Annotated[Mapping[str, Any], Keyed({"weights": dict[str, Any]}, others=Setting)] = (
        field(default_factory=dict)
    )
    options: Mapping[str, Setting] = field(default_factory=dict)
    environment: str = ""
    combined: Names = ()
    trainer: Literal["any", "own", "others"] = "any"
    fails: Flag = False

    @property
    def settings(self) -> bool:
        """Whether it changes more than stages."""
        return bool(self.training or self.rollouts or self.options or self.environment)


@dataclass(frozen=True)
class Unseen(Entry):
    """Why a log may hide the cause of a training reward that stays flat beside healthy metrics.

    rank: how well it fits that symptom, 1 for the best; why: the reason, as a sentence.
    """

    rank: Count
    why: str


@dataclass(frozen=True)
class Precondition(Entry):
    """What a case must have for the hypothesis to be about it.

    training: a setting of its training that is not 0; lacking: a case without it, in words.
    """

    training: str
    lacking: str


# the rows of a log that a check looks at: the first ones, the last third, the one with the largest value, or all
Place = Literal["start", "end", "ends", "largest", "run"]


@dataclass(frozen=True)
class LogCheck(Entry):
    """What is said of a check of a log.

    order: findings of equal strength rank by it, and what can be told from few rows comes first. needs:
    alternatives, each a set of names that must all be logged (Log.has). fewest: by quantity, finite values that
    it takes; of what is needed one, where nothing is said. threshold: the bound in words; reason: why that one, or
    its source. measured: the names of the values that are numbers to report; a value that is a
    mapping has one for each key, `{name}`. found, fine: the sentence for a reading with and without strength, or
    several, by what the reading says. explains: checks whose finding follows from this one's, where both are
    there. clears: it measures the mechanism itself, so that the hypothesis is not suspected where it is fine.
    refuted_by: what the user would see, or could try, if the finding were wrong. change: a setting by TRL's name, with a
    value to try or what to multiply it by. next: how to look closer, by the check of a trainer or by reading rollouts.
    unless: settings by TRL's name, with values under which what is measured is meant. at: the rows that it looks at.
    starves: what it finds leaves nothing to learn from, which a run that learns refutes.
    """

    name: str
    order: Natural
    needs: tuple[Names, ...]
    threshold: str
    reason: str
    measured: Mapping[str, str]
    found: Texts
    fine: Texts
    refuted_by: str
    explains: Names = ()
    clears: Flag = False
    starves: Flag = False
    at: Place = "run"
    change: Mapping[str, Setting] = field(default_factory=dict)
    next: Literal["check", "read"] = "check"
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fewest: Mapping[str, Natural] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hypothesis(Entry):
    """A claim with its texts, its arms and its checks of a log.

    kind: a localiser says where a failure occurs, and never competes as a cause. number: in the original notes, where
    two were used twice. answer: the claim, once validated, in a plain sentence to the owner of the run. prerequisites:
    slugs that are tested in an earlier phase. interactions: slugs whose interventions may change this one's.
    simpler_learns: what a localiser claims of its simpler setting: that it learns while the case does not, or that it
    fails too. symptom: a column of runs.csv that is extreme where the cause is at work, and may be so where another one is
    (verdicts/symptoms.py). precondition: without it, and without the mechanism or an arm that changes anything, it is
    not applicable. part: of what no hypothesis names, the stage or the setting (unnamed.py).
    """

    slug: str = ""
    number: str
    kind: Literal["cause", "localiser"]
    priority: Literal["critical", "high", "medium", "low"]
    claim: str
    answer: str
    explanation: str
    root_cause: str
    methods: str
    diagnostics: str
    success: str
    invalidation: str
    alternatives: Names
    cost: str
    next_steps: str
    arms: tuple[Intervention, ...] = ()
    prerequisites: Names = ()
    interactions: Names = ()
    simpler_learns: Flag = False
    unseen: Unseen | None = None
    symptom: Literal["kl_max", "grad_norm_max"] | None = None
    precondition: Precondition | None = None
    part: str | None = None
    log_checks: tuple[LogCheck, ...] = ()

    elsewhere: ClassVar = ("slug", "part")

    def arms_on(self, trainer: str) -> tuple[Intervention, ...]:
        """Return the arms that are for this trainer, in the folder's order."""
        return tuple(
            arm
            for arm in self.arms
            if arm.trainer == "any" or (arm.trainer == "own") == (trainer == "own")
        )


def hypothesis_of(slug: str, entries: Any, path: Path) -> Hypothesis:
    """Return the hypothesis that a cause.yaml has. Raise InputError for the first thing that is wrong in it."""
    return replace(checked(Hypothesis, entries, path), slug=slug)


def check_names(path: Path, key: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError, one line, for the first of the names in a cause.yaml that stands for nothing."""
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(f"{path}: key '{key}' names '{name}': {hint(name, known)}")
