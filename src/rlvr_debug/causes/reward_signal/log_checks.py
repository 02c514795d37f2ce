"""What a log shows for reward-signal."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import (
    LARGE,
    MILD,
    STOPS,
    Passage,
    Reading,
    Trend,
    correlation,
    from_the_start,
    graded,
    trend,
)
from rlvr_debug.causes.readings import DEAD, SAME, dead, group_where, groups_of, of_early_groups
from rlvr_debug.logs.log import Array, Log

_PART_CHANGE = 0.1
_FEWEST_LENGTHS = 12
_FEWEST_VALUES = 5  # right and wrong alone may have lengths of their own
_FEWEST_COPIES = 4
_OWN_FALL = 0.3


def constant_reward(log: Log) -> Reading | None:
    rewards = log.series("reward")
    if rewards.size < 4 and log.has("completions.reward"):
        rewards = log.completions["reward"].dropna().to_numpy(dtype=np.float64)
    if rewards.size < 4:
        return None
    scale = float(np.abs(rewards).max())
    spread = float(rewards.max() - rewards.min())
    within = log.series("reward_std")
    same = spread <= SAME * scale
    constant = same and (not within.size or within.max() <= SAME * max(scale, 1e-300))
    values = {"spread": spread, "first": rewards[0], "least": rewards.min(), "most": rewards.max()}
    return Reading(STOPS if constant else 0, values, 1.0)


def equal_rewards(log: Log) -> Reading | None:
    """Groups whose completions differ and whose rewards do not."""
    groups = groups_of(log)
    if groups is None:
        return None
    different = groups["completion"].nunique() > 1
    alike = dead(log, groups) & different
    share = min(of_early_groups(alike), _at_least(alike))
    if (logged := log.series("dead_groups")).size:  # of all groups, where the log has some
        share = min(share, from_the_start(logged))
    shown = group_where(groups, groups["completion"].nunique()[alike])
    return Reading(graded(share, DEAD), {"share": share}, share, rollouts=shown)


def _at_least(values: pd.Series) -> float:
    """Return the mean, less what few groups may be off by: the lower bound of Wilson's interval at one standard error."""
    n, p = len(values), float(values.mean())
    root = np.sqrt(p * (1 - p) / n + 1 / (4 * n * n))
    return float((p + 1 / (2 * n) - root) / (1 + 1 / n))


def parts_pull_apart(log: Log) -> Reading | None:
    """Over the run: one part of the reward rises while another falls."""
    found = _part_trends(log)
    if len(found) < 2:
        return None
    scale = max(float(np.nanmax(np.abs(log.parts.to_numpy(dtype=np.float64)))), 1e-300)
    far = _PART_CHANGE * scale
    up = {n: t.change for n, t in found.items() if t.rises and t.change >= far}
    down = {n: -t.change for n, t in found.items() if t.falls and -t.change >= far}
    changes = {name: each.change for name, each in found.items()}
    against = _against(up, down)
    amount = min(1.0, against.get("gain", 0.0) / scale)
    return Reading(LARGE if against else 0, {"changes": changes, **against}, amount)


def _part_trends(log: Log) -> dict[str, Trend]:
    """Return the trend of each part's mean, of parts with rows enough."""
    series = {str(name): log.parts[name].dropna().to_numpy(dtype=np.float64) for name in log.parts}
    return {name: trend(values) for name, values in series.items() if values.size >= 9}


def _against(up: Mapping[str, float], down: Mapping[str, float]) -> dict[str, Any]:
    """Return the part that rises most and the one that falls most, by how much each; nothing where not both do."""
    if not (up and down):
        return {}
    rising, falling = (max(each, key=lambda name: each[name]) for each in (up, down))
    return {"rising": rising, "gain": up[rising], "falling": falling, "loss": down[falling]}


def parts_conflict(log: Log) -> Reading | None:
    """Within groups, rollout by rollout: two parts of the reward against each other."""
    groups = groups_of(log)
    names = [str(name) for name in log.completions if str(name).startswith("part/")]
    if groups is None or len(names) < 2:
        return None
    centred = groups.obj[names] - groups[names].transform("mean")
    values: Array = centred.dropna().to_numpy(dtype=np.float64).T
    if values.shape[1] < 10:
        return None
    vary = np.flatnonzero(np.ptp(values, axis=1) > 0)
    pairs = {
        (int(a), int(b)): correlation(values[a], values[b])
        for a, b in itertools.combinations(vary, 2)
    }
    if not pairs:
        return None
    (a, b), worst = min(pairs.items(), key=lambda item: item[1])
    one, other = names[a].removeprefix("part/"), names[b].removeprefix("part/")
    changes = _part_trends(log)
    falls = any(t.falls for t in changes.values())
    costs = len(changes) < log.parts.shape[1] or not changes or falls
    strength = graded(-worst, {MILD: 0.5, LARGE: 0.8}) if costs else 0
    return Reading(strength, {"worst": worst, "one": one, "other": other}, -worst)


def dead_part(log: Log) -> Reading | None:
    stds = {name: log.part_stds[name].dropna() for name in log.part_stds}
    still = [str(name) for name, each in stds.items() if len(each) >= 4 and (each == 0).all()]
    values = {"still": float(len(still)), "names": ", ".join(still)}
    return Reading(MILD if still else 0, values, len(still) / len(stds))


def reward_is_length(log: Log) -> Reading | None:
    """Within groups: rewards that follow the length of the completion, and nothing else."""
    groups = groups_of(log)
    if groups is None:
        return None
    table = groups.obj.assign(length=groups.obj["completion"].str.len().astype(float))
    both = ["reward", "length"]
    apart = table[both] - table.groupby(["step", "prompt"])[both].transform("mean")
    live = (apart.abs() > 0).all(axis="columns")
    if live.sum() < _FEWEST_LENGTHS or table["reward"][live].nunique() < _FEWEST_VALUES:
        return None
    found = correlation(*apart[live].to_numpy(dtype=np.float64).T)
    which = "longer" if found > 0 else "shorter"
    values = {"correlation": found, "which": which}
    lengths = table.groupby(["step", "prompt"])["length"]
    shown = group_where(groups, lengths.max() - lengths.min())
    strength = graded(abs(found), {MILD: 0.85, LARGE: 0.95})
    return Reading(strength, values, 0.8, rollouts=shown)


def another_judgement(log: Log) -> Reading | None:
    """The same completion of the same prompt, with another reward."""
    table = log.completions.dropna(subset=["reward"])
    groups = table.groupby(["prompt", "completion"])["reward"]
    spread = (groups.max() - groups.min())[groups.size() > 1]
    scale = float(table["reward"].abs().max()) or 1.0
    if len(spread) < _FEWEST_COPIES:
        return None
    share = float((spread > SAME * scale).mean())
    shown = tuple(Passage(int(row)) for row in groups.groups[spread.idxmax()])
    values = {"share": share, "count": len(spread)}
    return Reading(graded(share, {MILD: 0.1, LARGE: 0.3}), values, 1.0, rollouts=shown)


def part_given_up(log: Log) -> Reading | None:
    """A part of the reward that falls by its own measure, however small it is beside what rises."""
    found = _part_trends(log)
    if len(found) < 2:
        return None
    up = {name: t.change for name, t in found.items() if t.rises}
    down = {
        name: -t.change / t.first
        for name, t in found.items()
        if t.falls and t.first > 0 and -t.change >= _OWN_FALL * t.first
    }
    against = _against(up, down)
    return Reading(LARGE if against else 0, {"falls": down if against else {}, **against}, 0.9)
