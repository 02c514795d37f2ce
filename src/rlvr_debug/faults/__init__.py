"""Planted faults: broken implementations of one stage each, by name. One file per fault.

A fault module has STAGE, the stage that it breaks; CAUSE, the slug of the hypothesis that it makes true;
and `implementation`, what stands there instead. docs/faults.md lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr_debug.grpo.stages import Stages

__all__ = ["cause_of", "fault_names", "faulty_stages", "stage_of"]


def fault_names() -> tuple[str, ...]:
    return tuple(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def stage_of(name: str) -> str:
    stage: str = _module(name).STAGE
    return stage


def cause_of(name: str) -> str:
    cause: str = _module(name).CAUSE
    return cause


def faulty_stages(names: Sequence[str]) -> Stages:
    """The stages with these faults in place."""
    from rlvr_debug.grpo.stages import Stages  # params are checked without loading torch

    stages = Stages()
    for name in names:
        stages = stages.with_fault(stage_of(name), _module(name).implementation)
    return stages
