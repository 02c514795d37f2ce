"""Environments by name: each is a folder beside this file, and no other file names it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_debug.environments.base import Environment
    from rlvr_debug.environments.task import Task


def environment_names() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)


def task_of(name: str) -> Task:
    """Import the environment's folder, and return what it says of itself."""
    task: Task = importlib.import_module(f"{__name__}.{name}").TASK
    return task


def settings_of(name: str) -> ModuleType:
    """Import the environment's settings.py, which has its blocks of params.yaml as Data and Settings."""
    return importlib.import_module(f"{__name__}.{name}.settings")


def build_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Build an environment from its block `environments.<name>` of params.yaml."""
    own = dict(settings)
    most = own.pop("max_context", 0)
    environment = task_of(name).build(**own)
    environment.max_context = most
    return environment
