"""What a log shows for advantage-scaling."""

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, graded
from rlvr_debug.causes.readings import SAME, follows, group_where, groups_of, of_early_groups
from rlvr_debug.logs.log import Array, Log

_TINY_GROUPS = 0.05
_TINY_SHARE = {MILD: 0.5, LARGE: 0.9}
_TOLERANCE = 1e-3
_LARGEST = 10.0
_FOLLOWS = 0.5
_UNEVEN = 1.5
_SAME_FACTOR = 1.2


def advantage_bound(log: Log) -> Reading | None:
    groups = groups_of(log)
    if groups is None:
        return None
    sizes = groups["advantage"].transform("size").to_numpy(dtype=np.float64)
    largest = log.completions.loc[groups["advantage"].transform("size").index, "advantage"].abs()
    excess = float((largest.to_numpy() / ((sizes - 1) / np.sqrt(sizes))).max())
    found = follows(log)
    # scaled by one deviation for all groups, or by none: the bound is of a group's own
    own = found is None or (found.factors <= 0).any() or _spread_of(found.factors) > _SAME_FACTOR
    beyond = excess > 1 + _TOLERANCE and log.completions["reward"].abs().max() <= 1 and own
    each = groups["advantage"]
    shown = group_where(groups, each.max().where(each.max() >= -each.min(), -each.min()))
    strength, amount = LARGE if beyond else 0, min(1.0, excess / 100)
    return Reading(strength, {"excess": excess}, amount, rollouts=shown)


def advantages_too_large(log: Log) -> Reading | None:
    largest = float(log.series("advantage_max").max(initial=0))
    deviation = float(np.median(log.series("group_std")))
    # (N - 1) / sqrt(N) = largest, solved for N
    rollouts = int(np.ceil(((largest + np.hypot(largest, 2)) / 2) ** 2))
    values: dict[str, float] = {"largest": largest, "deviation": deviation, "rollouts": rollouts}
    # advantages that are not scaled are about as large as the deviation
    beyond = largest >= max(_LARGEST, _LARGEST * deviation)
    if not beyond:
        return Reading(0, values)
    groups = groups_of(log)
    if groups is None:
        return Reading(LARGE, values, 1.0, "any")
    size = int(groups.size().max())
    return Reading(LARGE, {**values, "size": size, "most": (size - 1) / np.sqrt(size)}, 1.0, "size")


def tiny_deviations(log: Log) -> Reading | None:
    groups = groups_of(log)
    if groups is not None and "reward" in log.completions:
        scale = float(log.completions["reward"].abs().max())
        deviations = groups["reward"].std()
        live = deviations[deviations > SAME * scale]
        if not scale or len(live) < 10:
            return None
        share = of_early_groups(live < _TINY_GROUPS * scale)
        shown = group_where(groups, -live)
        return Reading(graded(share, _TINY_SHARE), {"share": share}, share, "groups", shown)
    shares = log.series("tiny_std_share")
    if not shares.size:
        return None
    share = float(np.median(shares))
    return Reading(graded(share, {LARGE: 0.5}), {"gradient": share}, share, "gradient")


def scale_uneven(log: Log) -> Reading | None:
    """Between groups, advantages are neither the distances of rewards nor these in units of the group's deviation."""
    found = follows(log)
    if found is None or found.share < _FOLLOWS or (found.factors <= 0).any():
        return None
    plain = _spread_of(found.factors)
    scaled = _spread_of(found.factors * found.spreads)
    centred = "" if found.centred else ", and advantages do not sum to 0 in their groups"
    values = {"plain": plain, "scaled": scaled, "centred": centred}
    return Reading(LARGE if min(plain, scaled) >= _UNEVEN else 0, values, 1.0)


def _spread_of(values: Array) -> float:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(high / low)
