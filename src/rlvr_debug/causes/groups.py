"""Groups of completions in a log, those of one prompt in one step, and how their advantages follow from their rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Passage, correlation
from rlvr_debug.logs.log import Array, Log

Groups: TypeAlias = "pd.api.typing.DataFrameGroupBy[Any, Any]"

DEAD = {MILD: 0.5, LARGE: 0.75, STOPS: 0.9}
SAME = 1e-6
_FEWEST = 4  # groups that have any spread
_CENTRED = 0.05  # of the largest advantage, as group-means has it
_NEXT_TO_0 = 1e-12


def groups_of(log: Log) -> Groups | None:
    """Of the completions, those of one prompt in one step; only groups of at least two."""
    table = log.completions
    if table.empty:
        return None
    sizes = table.groupby(["step", "prompt"])["prompt"].transform("size")
    kept = table[sizes > 1]
    return kept.groupby(["step", "prompt"]) if len(kept) else None


def group_where(groups: Groups, value: pd.Series) -> tuple[Passage, ...]:
    """Return the rollouts of the group with the largest value; none where no group has one. value: by (step, prompt)."""
    known = value[value.notna()]
    if known.empty:
        return ()
    rows = groups.groups[known.idxmax()]
    return tuple(Passage(int(row)) for row in rows)


def dead(log: Log, groups: Groups) -> pd.Series:
    """Return whether all rewards of the group are equal, by (step, prompt)."""
    scale = float(log.completions["reward"].abs().max()) or 1.0
    return (groups["reward"].max() - groups["reward"].min()) <= SAME * scale


def of_early_groups(dead: pd.Series) -> float:
    """The same of groups, one value each, by (step, prompt): those of the first third of the steps."""
    steps = dead.index.get_level_values("step")
    known = np.unique(steps.to_numpy())
    early = steps <= known[max(0, known.size // 3 - 1)]
    return float(min(dead[early].mean(), dead.mean()))


def at_least(values: pd.Series) -> float:
    """Return the mean, less what few groups may be off by: the lower bound of Wilson's interval at one standard error."""
    n, p = len(values), float(values.mean())
    root = np.sqrt(p * (1 - p) / n + 1 / (4 * n * n))
    return float((p + 1 / (2 * n) - root) / (1 + 1 / n))


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
    if sum(str(name).startswith("part/") for name in log.completions) > 1 and not log.own_reward:
        return None
    scale = float(log.completions["reward"].abs().max()) or 1.0
    found = [_group(group, scale) for _, group in groups]
    kept = [each for each in found if each is not None]
    if len(kept) < _FEWEST:
        return None
    scaled = [(r / r.std(), (a - a.mean()) / max(a.std(), _NEXT_TO_0)) for r, a, _ in kept]
    along = correlation(*(np.concatenate(each) for each in zip(*scaled, strict=True)))
    mean = float(np.median([abs(a.mean()) for _, a, _ in kept]))
    largest = float(np.median([np.abs(a).max() for _, a, _ in kept]))
    below = np.concatenate([a[r < 0] for r, a, _ in kept])
    return Follows(
        max(0.0, along) ** 2,
        mean <= _CENTRED * max(largest, _NEXT_TO_0),
        float((below == 0).mean()),
        np.array([(r * a).sum() / (r * r).sum() for r, a, _ in kept]),
        np.array([spread for _, _, spread in kept]),
    )


def _group(group: pd.DataFrame, scale: float) -> tuple[Array, Array, float] | None:
    """Return rewards less their mean, advantages, and the rewards' deviation; None without a spread."""
    rewards = group["reward"].to_numpy(dtype=np.float64)
    advantages = group["advantage"].to_numpy(dtype=np.float64)
    both = np.isfinite(rewards) & np.isfinite(advantages)
    rewards, advantages = rewards[both], advantages[both]
    if rewards.size < 2 or np.ptp(rewards) <= SAME * scale:
        return None
    return rewards - rewards.mean(), advantages, float(rewards.std(ddof=1))
