"""What many values are summed up as."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["mean", "quantiles"]


def mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


def quantiles(name: str, values: Tensor, percents: Sequence[int]) -> dict[str, float]:
    """`name`/p01 and so on, interpolated linearly. values: [N]; percents: of 100, 0 is the minimum and
    100 the maximum."""
    labels = {0: "min", 100: "max"}
    shares = torch.tensor(percents, dtype=values.dtype) / 100
    found = torch.quantile(values, shares).tolist()
    return {
        f"{name}/{labels.get(percent, f'p{percent:02d}')}": value
        for percent, value in zip(percents, found, strict=True)
    }
