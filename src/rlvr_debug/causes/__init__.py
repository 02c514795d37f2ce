"""Causes by name, one folder each: a new folder is found by itself.

A folder holds all that names its cause: `cause.yaml` has the claim and its texts, the arms, and what is to be read
from a log; `replay.yaml` where the check of a trainer shows it, and by which names; `log_checks.py` the functions that
read the log, one for each of its checks; every other file is a *variant*: a wrong implementation of one stage of GRPO, with STAGE and `implementation`. Variants plant faults and
name them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rlvr_debug.causes.base import Hypothesis, check_names, hypothesis_of
from rlvr_debug.causes.unnamed import is_unnamed, unnamed_hypothesis
from rlvr_debug.errors import InputError, short
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
        return unnamed_hypothesis(slug)
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
