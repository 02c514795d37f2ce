"""Hypotheses by slug. One file each; a new file is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection

from rlvr_debug.hypotheses.base import Hypothesis

__all__ = ["Hypothesis", "hypothesis_names", "load_hypothesis", "phase_of"]

_FIRST = ("critical", "high")


def hypothesis_names() -> tuple[str, ...]:
    return tuple(
        info.name.replace("_", "-")
        for info in pkgutil.iter_modules(__path__)
        if info.name not in ("base", "template")
    )


def load_hypothesis(slug: str) -> Hypothesis:
    module = importlib.import_module(f"{__name__}.{slug.replace('-', '_')}")
    hypothesis: Hypothesis = module.HYPOTHESIS
    return hypothesis


def phase_of(slug: str, tested: Collection[str]) -> int:
    """When it is tested among those `tested`: critical and high priorities in phase 1, others in phase 2,
    and none before the phase after its prerequisites'.
    """
    hypothesis = load_hypothesis(slug)
    own = 1 if hypothesis.priority in _FIRST else 2
    before = [phase_of(other, tested) for other in hypothesis.prerequisites if other in tested]
    return max([own, *(phase + 1 for phase in before)])
