"""Environments by name: each is a folder beside this file, and no other file names it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.files import read_yaml
from rlvr_debug.schemas import check_schema, validator_of

if TYPE_CHECKING:
    from rlvr_debug.environments.base import Environment
    from rlvr_debug.environments.task import Task

__all__ = ["build_environment", "environment_names", "settings_of", "task_of"]


def environment_names() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)


def task_of(name: str) -> Task:
    """Import the environment's folder, and return what it says of itself."""
    task: Task = importlib.import_module(f"{__name__}.{name}").TASK
    return task


def settings_of(name: str) -> dict[str, Any]:
    """Return what the environment's settings.yaml says of its blocks in params.yaml (docs/extend.md)."""
    here = Path(__path__[0])
    path = here / name / "settings.yaml"
    found: dict[str, Any] = read_yaml(path)
    check_schema(found, validator_of(here / "settings.schema.yaml"), path)
    return found


def build_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Build an environment from its block `environments.<name>` of params.yaml."""
    return task_of(name).build(**settings)
