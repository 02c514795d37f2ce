"""Environments by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.calculator import Calculator
from rlvr_debug.environments.gsm8k import GSM8K
from rlvr_debug.environments.musique import MuSiQue

__all__ = ["build_environment"]


def build_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """`settings`: the environment's block of params.yaml."""
    environments: dict[str, Callable[..., Environment]] = {
        "musique": MuSiQue,
        "gsm8k": GSM8K,
        "calculator": Calculator,
    }
    return environments[name](**settings)
