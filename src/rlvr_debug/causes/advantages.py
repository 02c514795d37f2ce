"""How the advantages in a log follow from its rewards, group by group. Several causes read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlvr_debug.causes.groups import SAME, groups_of
from rlvr_debug.logs.log import Array, Log

__all__ = ["Follows", "follows"]

_FEWEST = 4  # groups that have any spread


@dataclass(frozen=True)
class Follows:
    """Over the groups whose rewards differ.

    share: of the advantages' variance that the rewards of the same rollouts explain. centred: whether groups sum to
    0. dropped: share of rollouts below their group's mean whose advantage is exactly 0. factors: what a reward's
    distance from the mean is multiplied by, [groups]; spreads: the deviation of each group's rewards, [groups].
    """

    share: float
    centred: bool
    dropped: float
    factors: Array
    spreads: Array


def follows(log: Log) -> Follows | None:
    """Return it, None where too few groups differ or rewards have several parts whose weights no log has."""
    groups = groups_of(log)
    if groups is None or not {"reward", "advantage"} <= set(log.completions):
        return None
    if sum(str(name).startswith("part/") for name in log.completions) > 1 and not _is_sum(log):
        return None
    scale = float(log.completions["reward"].abs().max()) or 1.0
    found = [_group(group, scale) for _, group in groups]
    kept = [each for each in found if each is not None]
    if len(kept) < _FEWEST:
        return None
    reward = np.concatenate([r / r.std() for r, _, _ in kept])
    advantage = np.concatenate([a - a.mean() for _, a, _ in kept])
    weights = np.concatenate([np.full(len(a), 1 / max(a.std(), 1e-12)) for _, a, _ in kept])
    scaled = advantage * weights
    share = float(np.corrcoef(reward, scaled)[0, 1]) if scaled.std() and reward.std() else 0.0
    means = np.array([abs(a.mean()) for _, a, _ in kept])
    sizes = np.array([np.abs(a).max() for _, a, _ in kept])
    below = np.concatenate([a[r < 0] for r, a, _ in kept])
    factors = np.array([float((r * a).sum() / (r * r).sum()) for r, a, _ in kept])
    return Follows(
        max(0.0, share) ** 2,
        bool(np.median(means) <= 0.05 * max(float(np.median(sizes)), 1e-12)),
        float((below == 0).mean()) if below.size else 0.0,
        factors,
        np.array([spread for _, _, spread in kept]),
    )


def _is_sum(log: Log) -> bool:
    """Whether the rewards were logged beside their parts."""
    return bool(log.completions.attrs.get("own_reward"))


def _group(group: pd.DataFrame, scale: float) -> tuple[Array, Array, float] | None:
    """Return rewards less their mean, advantages, and the rewards' deviation; None without a spread."""
    rewards = group["reward"].to_numpy(dtype=np.float64)
    advantages = group["advantage"].to_numpy(dtype=np.float64)
    both = np.isfinite(rewards) & np.isfinite(advantages)
    rewards, advantages = rewards[both], advantages[both]
    if rewards.size < 2 or np.ptp(rewards) <= SAME * scale:
        return None
    return rewards - rewards.mean(), advantages, float(rewards.std(ddof=1))
