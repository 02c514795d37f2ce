"""Hypotheses by slug. One file each; a new file is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from rlvr_debug.hypotheses.base import Hypothesis

__all__ = ["Hypothesis", "hypothesis_names", "load_hypothesis"]


def hypothesis_names() -> tuple[str, ...]:
    return tuple(
        info.name.replace("_", "-")
        for info in pkgutil.iter_modules(__path__)
        if info.name != "base"
    )


def load_hypothesis(slug: str) -> Hypothesis:
    module = importlib.import_module(f"{__name__}.{slug.replace('-', '_')}")
    hypothesis: Hypothesis = module.HYPOTHESIS
    return hypothesis
