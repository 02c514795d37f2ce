"""What a log shows for group-construction."""

import numpy as np

from rlvr_debug.causes.check import (
    LARGE,
    MILD,
    STOPS,
    Reading,
    from_the_start,
    graded,
    late,
    later,
    steps_from_the_start,
    trend,
)
from rlvr_debug.causes.readings import DEAD, dead, follows, group_where, groups_of, of_early_groups
from rlvr_debug.logs.log import Log

_COPIES = {LARGE: 0.5, STOPS: 0.9}
_UNEVEN = {LARGE: 0.1}
_ENTROPY_DOWN = 0.1
_FOLLOWS = 0.5
_DROPPED = 0.9
_COLD = {MILD: -0.5, LARGE: -0.35}


def dead_groups(log: Log) -> Reading | None:
    shares = log.series("dead_groups")
    groups = groups_of(log) if "reward" in log.completions else None
    alike = None if groups is None else dead(log, groups)
    if shares.size:
        share = from_the_start(shares)
    elif alike is not None:
        share = of_early_groups(alike)
    else:
        return None
    shown = () if groups is None or alike is None else group_where(groups, alike[alike])
    spoken = steps_from_the_start(log, "dead_groups") if shares.size else ()
    values = {"share": share, "later": later(shares)}
    return Reading(graded(share, DEAD), values, share, rollouts=shown, steps=spoken)


def duplicates(log: Log) -> Reading | None:
    groups = groups_of(log)
    if groups is None:
        return None
    sizes = groups.size()
    shares = (sizes - groups["completion"].nunique()) / (sizes - 1)
    copies = of_early_groups(shares)
    shown = group_where(groups, shares)
    return Reading(graded(copies, _COPIES), {"copies": copies}, copies, rollouts=shown)


def group_means(log: Log) -> Reading | None:
    groups = groups_of(log)
    if groups is None:
        return None
    means = groups["advantage"].mean().abs()
    scale = float(log.completions["advantage"].abs().max())
    if not scale or not np.isfinite(scale):
        return None
    share = float((means > 0.05 * scale).mean())
    shown = group_where(groups, means)
    return Reading(graded(share, _UNEVEN), {"share": share}, share, rollouts=shown)


def entropy_collapses(log: Log) -> Reading | None:
    found = trend(log.series("entropy"))
    if found is None or found.first <= 0:
        return None
    falls = found.falls and found.last <= _ENTROPY_DOWN * found.first
    values = {"first": found.first, "last": found.last}
    # it falls in every run that learns; here groups die of it
    strength = LARGE if late(log.series("dead_groups")) >= DEAD[LARGE] else MILD
    return Reading(strength if falls else 0, values, 1 - max(0.0, found.last / found.first))


def advantages_of_others(log: Log) -> Reading | None:
    found = follows(log)
    if found is None:
        return None
    values = {"share": found.share, "dropped": found.dropped}
    if found.dropped >= _DROPPED:
        return Reading(LARGE, values, 1.0, "dropped")
    return Reading(LARGE if found.share < _FOLLOWS else 0, values, 1.0, "others")


def sampling_cold(log: Log) -> Reading | None:
    value = log.argument("temperature")
    if value is None:
        return None
    return Reading(graded(-value, _COLD), {"value": value}, max(0.0, 1 - value))
