"""Few numbers for many values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# steps that a training reward is the mean of where it is shown
SMOOTHED = 5


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed from left to right."""
    return float(sum(values) / len(values))


def quantiles(name: str, values: Tensor, percents: Sequence[int]) -> dict[str, float]:
    """Return `name`/p01 and so on, interpolated linearly. values: [N].

    percents: 0 is the minimum, `name`/min, and 100 the maximum, `name`/max.
    """
    labels = {0: "min", 100: "max"}
    shares = values.new_tensor(percents) / 100
    found = values.quantile(shares).tolist()
    return {
        f"{name}/{labels.get(percent, f'p{percent:02d}')}": value
        for percent, value in zip(percents, found, strict=True)
    }
