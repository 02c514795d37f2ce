"""The cases of the benchmark, for who plants and who scores: what is broken in each, and what its runs are told.

The study (study.py) imports nothing of this and gets no name from it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults import planted
from benchmarks.faults.study import Arm
from rlvr_debug.blocks import checked
from rlvr_debug.causes import hypothesis_names, load_variant, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_text
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.study.arms import value_of
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params

CASES = Path(__file__).with_name("cases.yaml")
ROWS = "rows"
# of every run, healthy ones too, by environment: as short as a healthy run's gain allows (docs/evidence.md)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "gsm8k": {"prompts_per_step": 8, "steps": 10},
    "musique": {"prompts_per_step": 8, "steps": 22},
}


@dataclass(frozen=True)
class Task:
    """What healthy runs of a case have too: settings, rows and rewards that are no fault.

    noise: share of rewards that a noisy judge draws at random.
    """

    environment: str
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0


@dataclass(frozen=True)
class Case:
    """name, causes and what follows are for who plants and who scores. causes: of a healthy case and of a fault
    that no hypothesis matches, none. rows: of known bugs. first_rows: training draws from these alone, 0 for all.
    """

    name: str
    kind: str  # planted, or healthy
    causes: tuple[str, ...]
    what: str
    task: Task
    faults: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    rollouts: Mapping[str, Any] = field(default_factory=dict)
    first_rows: int = 0
    rows: str = ""
    source: str = ""


@dataclass(frozen=True)
class Told:
    """All that a training is told, but its seed. Trainings that are told the same are one."""

    task: Task
    faults: tuple[str, ...]
    training: Mapping[str, Any]
    rollouts: Mapping[str, Any]
    first_rows: int

    @property
    def digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Told:
        task, broken = Task(**value["task"]), tuple(value["faults"])
        return Told(**{**value, "task": task, "faults": broken})


def load_cases(path: Path = CASES) -> dict[str, Case]:
    """Return the cases of a file by name. Raise InputError for the first that does not load."""
    found, wrong = readable_cases(path)
    for line in wrong.values():
        raise InputError(line)
    return found


def readable_cases(path: Path = CASES) -> tuple[dict[str, Case], dict[str, str]]:
    """Return the cases of a file that load, by name, and of each other a line that says why not."""
    text = read_text(path, "cases in YAML")
    try:
        kinds = yaml.safe_load(text)
        given = [(kind, name, told) for kind, of in kinds.items() for name, told in of.items()]
    except (yaml.YAMLError, AttributeError, TypeError):
        raise InputError(
            f"{path}: expected planted: and healthy:, each with cases by name"
        ) from None
    found, wrong = {}, {}
    for kind, name, told_ in given:
        try:
            found[name] = _case(kind, name, told_)
        except Exception as error:  # of a module that somebody else wrote, anything
            wrong[name] = f"{path}: case '{name}' does not load: {in_one_line(error)}"
    return found, wrong


def in_one_line(error: BaseException) -> str:
    """Return what an error of somebody else's module says."""
    return " ".join(str(error).split()) or type(error).__name__


def _case(kind: str, name: str, given: Mapping[str, Any]) -> Case:
    """Return one case. Raise what comes of it where it says what no run can be told."""
    if kind not in ("planted", "healthy"):
        raise InputError(f"found the kind '{kind}', expected planted or healthy")
    task = Task(**{"environment": "gsm8k", **given.get("task", {})})
    tuples = {key: tuple(given.get(key, ())) for key in ("causes", "faults")}
    case = Case(**{**given, "name": name, "kind": kind, "task": task, **tuples})
    _known(task.environment, SETTINGS, "environment")
    for slug in case.causes:
        _known(slug, hypothesis_names(), "cause")
    for fault in case.faults:
        module = module_of(fault)
        _known(module.STAGE, STAGES, f"stage in {fault}")
        if not callable(module.implementation):
            raise InputError(f"{fault} has no function `implementation`")
    for training in (task.training, case.training):
        checked(TrainingSettings, {**_healthy(task), **training}, "training")
    for name_ in case.rollouts:
        _known(name_, _settings(task), "setting of rollouts")
    if kind == "planted" and not parts_of(case):
        raise InputError("nothing is planted, expected faults, training, rollouts or first_rows")
    return case


def _known(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise InputError(f"no {what} '{name}': {hint(name, known)}")


def aliases(names: Collection[str]) -> dict[str, str]:
    """By name: what the study calls the case. Numbers in an order that has nothing to do with names."""
    shuffled = sorted(names)
    random.Random("the order of the cases").shuffle(shuffled)
    return {name: f"case-{number:02}" for number, name in enumerate(shuffled, 1)}


def module_of(fault: str) -> Any:
    """Return the module of one of the benchmark's own test faults, or of a variant of the library's."""
    name = fault.replace("-", "_")
    if any((Path(place) / f"{name}.py").is_file() for place in planted.__path__):
        return importlib.import_module(f"{planted.__name__}.{name}")
    if fault in variant_names():
        return load_variant(fault)
    raise InputError(f"found fault {fault}, expected a file {name}.py among the faults")


def stages_of(names: Sequence[str]) -> Stages:
    stages = Stages()
    for name in names:
        module = module_of(name)
        stages = stages.with_fault(module.STAGE, module.implementation)
    return stages


def settings_of(case: Case | Told) -> list[str]:
    """Return the settings in which the case is not healthy, each with its block; ROWS, where it trains on the first alone."""
    blocks = (("training", case.training), ("rollouts", case.rollouts))
    found = [f"{block}.{name}" for block, values in blocks for name in values]
    return found + ([ROWS] if case.first_rows else [])


def parts_of(case: Case) -> list[str]:
    """Return the stages and the settings in which the case is not healthy."""
    return [*(module_of(fault).STAGE for fault in case.faults), *settings_of(case)]


def told(case: Case, arm: Arm) -> Told:
    """What the runs of this arm are told."""

    everything = Told(case.task, case.faults, case.training, case.rollouts, case.first_rows)
    if arm.design == "case":
        return everything
    if arm.design == "control":
        return Told(case.task, (), {}, {}, 0)
    parts = {*arm.swap, *arm.settings}
    if arm.design == "alone":
        return only(everything, parts)
    left = only(everything, {*parts_of(case)} - parts)
    return replace(
        left,
        training={**left.training, **_values(arm.training, case.training, _healthy(case.task))},
        rollouts={**left.rollouts, **_values(arm.rollouts, case.rollouts, _settings(case.task))},
    )


def only(case: Told, parts: Collection[str]) -> Told:
    """Return what is told where these stages and settings are the case's, and all others are healthy."""
    return Told(
        case.task,
        tuple(fault for fault in case.faults if module_of(fault).STAGE in parts),
        {key: value for key, value in case.training.items() if f"training.{key}" in parts},
        {key: value for key, value in case.rollouts.items() if f"rollouts.{key}" in parts},
        case.first_rows if ROWS in parts else 0,
    )


def _values(
    changed: Mapping[str, Any], case: Mapping[str, Any], healthy: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        name: value_of(value, case.get(name, healthy.get(name)), healthy.get(name))
        for name, value in changed.items()
    }


def _healthy(task: Task) -> dict[str, Any]:
    return {**vars(_params().training), **SETTINGS[task.environment], **task.training}


def _settings(task: Task) -> dict[str, Any]:
    return {**_params().settings(task.environment), **task.settings}


@cache
def _params() -> Params:
    return load_params(ROOT / "params.yaml")
