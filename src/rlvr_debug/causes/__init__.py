"""Causes: what a hypothesis is, a claimed cause and the interventions that test it; and all of them by name.

A hypothesis is data, read from its folder's cause.yaml. Code elsewhere never asks which hypothesis it has: the effect
of its arms is judged alike for all, and so is its mechanism (verdicts/decide.py).

A folder is found by itself, and holds all that names its cause: `cause.yaml` has the claim and its texts, the arms, and
what is to be read from a log; `replay.yaml` where the check of a trainer shows it, and by which names; `log_checks.py`
the functions that read the log, one for each of its checks; every other file is a *variant*: a wrong implementation of
one stage of GRPO, with STAGE and `implementation`. Variants plant faults and name them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from rlvr_debug.blocks import A_MAPPING, Count, Entry, Flag, Keyed, Natural, Number, checked
from rlvr_debug.causes.unnamed import UNNAMED_TEXTS, is_unnamed, unnamed_entries, unnamed_part
from rlvr_debug.errors import InputError, hint, short
from rlvr_debug.files import read_text, read_yaml, write_text
from rlvr_debug.grpo.settings import STAGES, TrainingSettings

if TYPE_CHECKING:
    from rlvr_debug.grpo.stages import Stages

_HERE = Path(__file__).parent
# by priority: the phase in which it is tested, where nothing has to come before
_PHASES = {"critical": 1, "high": 2, "medium": 3, "low": 3}
# the file with the functions of a cause's checks (check.py)
CHECKS = "log_checks"
# the file of a cause that the check of a trainer shows (replay/variants.py)
REPLAY = "replay.yaml"


# --- what a hypothesis is


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
    (verdicts/decide.py). precondition: without it, and without the mechanism or an arm that changes anything, it is
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


# --- causes by name


@cache
def hypothesis_names() -> tuple[str, ...]:
    """Return the slug of every cause."""
    return tuple(sorted(path.parent.name.replace("_", "-") for path in _HERE.glob("*/cause.yaml")))


def file_of(slug: str) -> Path:
    """Return the cause.yaml of the folder."""
    return _HERE / slug.replace("-", "_") / "cause.yaml"


def is_checked(slug: str) -> bool:
    """Return whether the check of a trainer shows the cause."""
    return file_of(slug).with_name(REPLAY).is_file()


def module_of(slug: str, file: str) -> ModuleType:
    """Import a Python file of the folder."""
    return importlib.import_module(f"{__name__}.{slug}.{file}".replace("-", "_"))


@cache
def read_hypothesis(slug: str) -> Hypothesis:
    """Return what the cause.yaml says, whether or not what it names exists. Raise InputError where it is none."""
    path = file_of(slug)
    return hypothesis_of(slug, read_yaml(path), path)


@cache
def load_hypothesis(slug: str) -> Hypothesis:
    """Return the hypothesis of this slug's folder, or what stands for one where no hypothesis names it (unnamed.py).

    Raise InputError where its cause.yaml is not one, or names what does not exist.
    """
    if is_unnamed(slug):
        part = unnamed_part(slug)
        return replace(hypothesis_of(slug, unnamed_entries(part), UNNAMED_TEXTS), part=part)
    path, hypothesis = file_of(slug), read_hypothesis(slug)
    for key in ("alternatives", "prerequisites", "interactions"):
        check_names(path, key, getattr(hypothesis, key), hypothesis_names())
    known_settings = TrainingSettings.__dataclass_fields__
    if hypothesis.precondition:
        setting = hypothesis.precondition.training
        check_names(path, "precondition.training", [setting], known_settings)
    for arm in hypothesis.arms:
        check_names(path, f"arms.{arm.name}.swap", arm.swap, STAGES)
        check_names(path, f"arms.{arm.name}.faults", arm.faults, variant_names())
        check_names(path, f"arms.{arm.name}.training", arm.training, known_settings)
    return hypothesis


def phase_of(slug: str, tested: Collection[str]) -> int:
    """Return when it is tested among those `tested`: critical priorities in phase 1, high ones in phase 2, others
    in phase 3, and none before the phase after its prerequisites'.
    """
    hypothesis = load_hypothesis(slug)
    before = [phase_of(other, tested) for other in hypothesis.prerequisites if other in tested]
    return max([_PHASES[hypothesis.priority], *(phase + 1 for phase in before)])


def in_order(slugs: Collection[str]) -> list[str]:
    """Return these hypotheses as they are tested: by phase, in it by priority, then by the original's numbers."""

    def place(slug: str) -> tuple[int, int, str, str]:
        hypothesis = load_hypothesis(slug)
        rank = list(_PHASES).index(hypothesis.priority)
        return phase_of(slug, slugs), rank, hypothesis.number, slug  # H06, H06 (second), H08, new

    return sorted(slugs, key=place)


@cache
def _variants() -> dict[str, str]:
    """The slug of each variant's cause, in the order of names; none of them is imported."""
    files = sorted(_HERE.glob("*/[a-z]*.py"), key=lambda path: path.stem)
    names = ((path.stem.replace("_", "-"), path.parent.name.replace("_", "-")) for path in files)
    return {name: slug for name, slug in names if name != CHECKS.replace("_", "-")}


def variant_names() -> tuple[str, ...]:
    """Return the names of all variants: what a case can have for `faults`."""
    return tuple(_variants())


def cause_of(variant: str) -> str:
    return _variants()[variant]


def variant_file(name: str) -> Path:
    """Return the file of a variant, by which Snakemake sees that it changed."""
    return file_of(cause_of(name)).with_name(f"{name.replace('-', '_')}.py")


def load_variant(name: str) -> ModuleType:
    """Return the variant's module, which has STAGE and `implementation`."""
    return module_of(cause_of(name), name)


def stage_of(variant: str) -> str:
    """Return the stage that the variant implements, by its text: its module needs torch, and params are checked without."""
    path = variant_file(variant)
    found = re.search(r"^STAGE\b.*=\s*[\"'](\w+)", read_text(path, "a variant"), re.MULTILINE)
    if found is None:
        raise InputError(f'{path}: no line STAGE = "..."; add it, with the stage it implements')
    return found[1]


def stages_with(variants: Sequence[str]) -> Stages:
    """Return the stages of GRPO with these variants in place."""
    # by name: params are checked without torch
    stages: Stages = importlib.import_module("rlvr_debug.grpo.stages").Stages()
    for name in variants:
        stages = stages.with_fault(stage_of(name), load_variant(name).implementation)
    return stages


def write_hypothesis(slug: str, kind: str, folder: Path = _HERE) -> Path:
    """Write the cause.yaml of a new hypothesis, and of a cause its replay.yaml, to be filled in; return the first's path.

    kind: cause or localiser. Raise InputError for a bad name, or one that is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug):
        raise InputError(
            f"slug is {short(slug)}, expected words of a to z and 0 to 9 with hyphens between them"
        )
    path = folder / slug.replace("-", "_") / "cause.yaml"
    if path.exists():
        raise InputError(f"{path}: exists; choose another name")
    parts = {path: "template.yaml"}
    if kind == "cause":
        parts[path.with_name("replay.yaml")] = "template_replay.yaml"
    for file, template in parts.items():
        text = (_HERE / template).read_text(encoding="utf-8")
        write_text(file, text.replace("{slug}", slug).replace("{kind}", kind))
    return path
