"""Rewards: by part, within and between groups, and how many groups there is nothing to learn from.

Axes: P prompts (groups), G rollouts per group, K reward parts, B = P x G rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlvr_debug.diagnostics.summaries import mean

__all__ = ["correlations", "group_metrics", "part_metrics", "pass_at_k"]


def group_metrics(rewards: Tensor, right: Tensor) -> dict[str, float]:
    """rewards: [P, G]; right: bool [P, G], whether the answer is.

    A dead group has equal rewards, by comparison: the standard deviation of equal float32 numbers is
    not always 0.
    """
    size = rewards.shape[1]
    dead = rewards.amax(1) == rewards.amin(1)
    counts = right.sum(1).tolist()
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_std/within_groups": float(rewards.std(1).mean()),
        **({"reward_std/between_groups": float(rewards.mean(1).std())} if len(rewards) > 1 else {}),
        "frac_reward_zero_std": float(dead.float().mean()),
        "frac_reward_zero_std/all_right": float((dead & right.all(1)).float().mean()),
        "frac_reward_zero_std/all_wrong": float((dead & ~right.any(1)).float().mean()),
        **{
            f"pass@{k}": mean([pass_at_k(size, count, k) for count in counts])
            for k in sorted({2**i for i in range(size.bit_length())} | {size})
        },
    }


def pass_at_k(n: int, right: int, k: int) -> float:
    """Probability that one of k is right, drawn without replacement from n of which `right` are.

    Unbiased for k new samples. Chen et al., arXiv 2107.03374, equation 1.
    """
    return 1 - comb(n - right, k) / comb(n, k)


def part_metrics(
    parts: Mapping[str, Sequence[float]], rewards: Sequence[float]
) -> dict[str, float]:
    """parts: by name, [B] each; rewards: [B]. A correlation with what is the same in every rollout is
    not defined, and left out."""
    found = {}
    for name, values in parts.items():
        found[f"rewards/{name}/mean"] = mean(values)
        found[f"rewards/{name}/std"] = float(np.std(values, ddof=1))
    names = ["reward", *parts]
    matrix = correlations(np.array([rewards, *parts.values()]))
    for a, b in combinations(range(len(names)), 2):
        if not np.isnan(matrix[a, b]):
            found[f"reward_correlation/{names[a]}/{names[b]}"] = float(matrix[a, b])
    return found


def correlations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's, of each row with each, [K, K]; NaN where a row is constant. values: [K, B]."""
    varies = values.max(1) > values.min(1)
    centred = values - values.mean(1, keepdims=True)
    norms = np.where(varies, np.linalg.norm(centred, axis=1), np.nan)
    unit = centred / norms[:, None]
    found: NDArray[np.float64] = np.clip(unit @ unit.T, -1.0, 1.0)
    return found
