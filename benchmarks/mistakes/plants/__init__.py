"""Mistakes with a strength: each takes a set-up and returns it with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.mistakes.plants import rewards, rollouts, update
from benchmarks.mistakes.plants.setup import Setup

__all__ = ["PLANTS", "Setup"]

PLANTS: Mapping[str, Callable[[Setup, Any], Setup]] = {
    name: getattr(module, name) for module in (rewards, rollouts, update) for name in module.__all__
}
