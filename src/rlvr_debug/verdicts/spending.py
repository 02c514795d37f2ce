"""The bar of a study that is looked at several times, where its verdicts are reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import _of_look

__all__ = ["Spending", "bar_at"]


@dataclass(frozen=True)
class Spending(Bar):
    """The bar of the sequential design: alpha is what all looks spend together, and an arm is held to its last look's."""


def bar_at(bar: Bar, seeds: ArrayLike) -> Bar:
    """Return the bar that arms of so many seeds are held to: of the fixed design, the bar itself."""
    if not isinstance(bar, Spending):
        return bar
    return _of_look(bar, np.asarray(seeds))
