"""Metrics of rewards and advantages: by part, within and between groups, and of groups that teach nothing.

Axes: P prompts (groups), G rollouts per group, K reward parts, B = P x G rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.metrics.summaries import mean

if TYPE_CHECKING:
    from torch import Tensor


def group_metrics(rewards: Tensor, right: Tensor) -> dict[str, float]:
    """Return means, spreads, shares of dead groups and pass@k. rewards: [P, G]; right: bool [P, G].

    `right` has the answers that are. A group is dead when its rewards compare equal: the standard deviation of equal float32 numbers is not
    always 0.
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
    """Return the probability that k of n samples, `right` of them right, hold a right one.

    The k are drawn without replacement; it is unbiased for k new samples. Chen et al., arXiv 2107.03374, equation 1.
    """
    return 1 - comb(n - right, k) / comb(n, k)


def part_metrics(
    parts: Mapping[str, Sequence[float]], rewards: Sequence[float]
) -> dict[str, float]:
    """Return each part's mean and spread, and correlations. parts: by name, [B] each; rewards: [B].

    A correlation with what is the same in every rollout is not defined, and left out.
    """
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
    """Return Pearson's correlation of each row with each, [K, K]; NaN where one is constant. values: [K, B]."""
    varies = values.max(1) > values.min(1)
    centred = values - values.mean(1, keepdims=True)
    norms = np.where(varies, np.linalg.norm(centred, axis=1), np.nan)
    unit = centred / norms[:, None]
    found: NDArray[np.float64] = np.clip(unit @ unit.T, -1.0, 1.0)
    return found


def advantage_metrics(advantages: Tensor, right: Tensor | None) -> dict[str, float]:
    """Return sizes and errors. advantages: [P, G]; right: those of the environment's rewards, where known."""
    wrong = {}
    if right is not None:
        wrong["advantages/error_abs_max"] = float((advantages - right).abs().max())
    return {
        "advantages/abs_max": float(advantages.abs().max()),
        "advantages/abs_mean": float(advantages.abs().mean()),
        "advantages/group_mean_abs_max": float(advantages.mean(1).abs().max()),
        **wrong,
    }
