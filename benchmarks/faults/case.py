"""The cases of the benchmark, for who plants and who scores: what is broken in each, and what its runs are told.

The study (study.py) imports nothing of this and gets no name from it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults import planted
from benchmarks.faults.study import Arm
from rlvr_debug.causes import load_variant, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.study.interventions import value_of
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params

__all__ = [
    "CASES",
    "SETTINGS",
    "Case",
    "Told",
    "aliases",
    "load_cases",
    "module_of",
    "stages_of",
    "told",
]

CASES = Path(__file__).with_name("cases.yaml")
# of every run, healthy ones too, by environment: as short as a healthy run's gain allows (docs/benchmark.md)
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
    after_freeze: bool = False


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
    """Raises InputError for an unknown fault."""
    found = {}
    for kind, cases in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for name, given in cases.items():
            task = Task(**{"environment": "gsm8k", **given.get("task", {})})
            case = Case(
                **{
                    **given,
                    "name": name,
                    "kind": kind,
                    "task": task,
                    "causes": tuple(given.get("causes", ())),
                    "faults": tuple(given.get("faults", ())),
                }
            )
            for fault in case.faults:
                module_of(fault)
            found[name] = case
    return found


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
    raise InputError(f"{CASES}: found fault {fault}, expected a file {name}.py among the faults")


def stages_of(names: Sequence[str]) -> Stages:
    stages = Stages()
    for name in names:
        module = module_of(name)
        stages = stages.with_fault(module.STAGE, module.implementation)
    return stages


def told(case: Case, arm: Arm) -> Told:
    """What the runs of this arm are told."""

    def kept(wanted: Callable[[str], bool]) -> tuple[str, ...]:
        return tuple(fault for fault in case.faults if wanted(module_of(fault).STAGE))

    everything = Told(case.task, case.faults, case.training, case.rollouts, case.first_rows)
    if arm.design == "case":
        return everything
    if arm.design == "control":
        return Told(case.task, (), {}, {}, 0)
    if arm.design == "alone":
        return Told(case.task, kept(lambda stage: stage in arm.swap), {}, {}, 0)
    return replace(
        everything,
        faults=kept(lambda stage: stage not in arm.swap),
        training={**case.training, **_values(arm.training, case.training, _healthy(case.task))},
        rollouts={**case.rollouts, **_values(arm.rollouts, case.rollouts, _settings(case.task))},
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
