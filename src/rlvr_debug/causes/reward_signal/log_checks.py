"""What a log shows for reward-signal."""

import itertools

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
from rlvr_debug.causes.readings import (
    DEAD,
    SAME,
    at_least,
    dead,
    final_answer,
    group_where,
    groups_of,
    of_early_groups,
)
from rlvr_debug.logs.log import Array, Log

_CONFLICT = {MILD: 0.5, LARGE: 0.8}  # of the correlation, without its sign
_PART_CHANGE = 0.1
_BY_LENGTH = {MILD: 0.85, LARGE: 0.95}
_FEWEST_LENGTHS = 12
_FEWEST_VALUES = 5  # right and wrong alone may have lengths of their own
_FEWEST_COPIES = 4
_JUDGED = {MILD: 0.1, LARGE: 0.3}
_OWN_FALL = 0.3
_APART = {LARGE: 0.6}
_FEWEST_PAIRS = 10
_TWO = {LARGE: 0.25}
_FEWEST_DIFFER = 2
_NUMBER = r"-?\d+(?:[.,]\d+)*"


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
    share = min(of_early_groups(alike), at_least(alike))
    if (logged := log.series("dead_groups")).size:  # of all groups, where the log has some
        share = min(share, from_the_start(logged))
    shown = group_where(groups, groups["completion"].nunique()[alike])
    return Reading(graded(share, DEAD), {"share": share}, share, rollouts=shown)


def parts_pull_apart(log: Log) -> Reading | None:
    """Over the run: one part of the reward rises while another falls."""
    found = _part_trends(log)
    if len(found) < 2:
        return None
    scale = max(float(np.nanmax(np.abs(log.parts.to_numpy(dtype=np.float64)))), 1e-300)
    up = {n: t for n, t in found.items() if t.rises and t.change >= _PART_CHANGE * scale}
    down = {n: t for n, t in found.items() if t.falls and -t.change >= _PART_CHANGE * scale}
    changes = {name: each.change for name, each in found.items()}
    if not (up and down):
        return Reading(0, {"changes": changes})
    rising = max(up, key=lambda name: up[name].change)
    falling = min(down, key=lambda name: down[name].change)
    gain, loss = changes[rising], -changes[falling]
    values = {"changes": changes, "rising": rising, "gain": gain, "falling": falling, "loss": loss}
    return Reading(LARGE, values, min(1.0, gain / scale))


def _part_trends(log: Log) -> dict[str, Trend]:
    """Return the trend of each part's mean, of parts with rows enough."""
    series = {str(name): log.parts[name].dropna().to_numpy(dtype=np.float64) for name in log.parts}
    return {name: found for name, values in series.items() if (found := trend(values))}


def parts_conflict(log: Log) -> Reading | None:
    """Within groups, rollout by rollout: two parts of the reward against each other."""
    groups = groups_of(log)
    names = [str(name) for name in log.completions if str(name).startswith("part/")]
    if groups is None or len(names) < 2:
        return None
    centred = log.completions.loc[groups["step"].transform("size").index, names]
    centred = centred - groups[names].transform("mean")
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
    costs = (
        len(changes) < log.parts.shape[1] or not changes or any(t.falls for t in changes.values())
    )
    strength = graded(-worst, _CONFLICT) if costs else 0
    return Reading(strength, {"worst": worst, "one": one, "other": other}, -worst)


def dead_part(log: Log) -> Reading | None:
    stds = {name: log.part_stds[name].dropna() for name in log.part_stds}
    still = [str(name) for name, each in stds.items() if len(each) >= 4 and (each == 0).all()]
    if len(stds) < 2:
        return None
    values = {"still": float(len(still)), "names": ", ".join(still)}
    return Reading(MILD if still else 0, values, len(still) / len(stds))


def reward_is_length(log: Log) -> Reading | None:
    """Within groups: rewards that follow the length of the completion, and nothing else."""
    groups = groups_of(log)
    if groups is None:
        return None
    table = log.completions.loc[groups["reward"].transform("size").index]
    table = table.assign(length=table["completion"].str.len().astype(float))
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
    return Reading(graded(abs(found), _BY_LENGTH), values, 0.8, rollouts=shown)


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
    return Reading(graded(share, _JUDGED), values, 1.0, rollouts=shown)


def answers_judged_apart(log: Log) -> Reading | None:
    """Rollouts of a group that give the same answer, with rewards as different as any two."""
    table = _answered(log)
    scores = [name for name in table if name == "reward" or str(name).startswith("part/")]
    # a part that never varies may be the one that the answer decides
    if not len(table) or (np.ptp(table[scores].to_numpy(np.float64), axis=0) == 0).any():
        return None
    pairs = [
        (int(one), int(other))
        for rows in table.groupby(["step", "prompt", "answer"]).groups.values()
        for one, other in itertools.combinations(rows, 2)
    ]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    one, other = (
        table.loc[list(rows), scores].to_numpy(np.float64) for rows in zip(*pairs, strict=True)
    )
    apart = (one - other) ** 2
    # two that have nothing to do with each other are twice the variance apart
    share = float((apart.mean(0) / (2 * table[scores].to_numpy(np.float64).var(0))).min())
    shown = tuple(Passage(row) for row in pairs[int(apart[:, 0].argmax())])
    values = {"share": min(share, 1.0), "pairs": len(pairs)}
    return Reading(graded(share, _APART), values, min(share, 1.0), rollouts=shown)


def two_right_answers(log: Log) -> Reading | None:
    """Groups in which two different numbers, of which one can be right, both earn the most that any rollout does."""
    table = _answered(log)
    table = table.assign(number=table["answer"].str.findall(_NUMBER).str[-1]).dropna()
    if not len(table):
        return None
    groups = table.groupby(["step", "prompt"])["number"]
    differ = groups.nunique() > 1
    rewards = table["reward"]
    best = table[rewards >= rewards.max() - SAME * rewards.abs().max()]
    right = best.groupby(["step", "prompt"])["number"].nunique().reindex(differ.index, fill_value=0)
    if differ.sum() < _FEWEST_DIFFER or np.ptp(table["reward"]) == 0:
        return None
    both = right[differ] > 1
    share = float(both.mean())
    found = graded(share, _TWO) if both.sum() >= _FEWEST_DIFFER else 0
    shown = tuple(Passage(int(row)) for row in groups.groups[right.idxmax()]) if found else ()
    return Reading(found, {"share": share, "groups": int(differ.sum())}, share, rollouts=shown)


def _answered(log: Log) -> pd.DataFrame:
    """Return the rollouts that give an answer, with it."""
    table = log.completions.dropna(subset=["reward"])
    return table.assign(answer=table["completion"].map(final_answer)).dropna(subset=["answer"])


def part_given_up(log: Log) -> Reading | None:
    """A part of the reward that falls by its own measure, however small it is beside what rises."""
    found = _part_trends(log)
    if len(found) < 2:
        return None
    rising = {name: t for name, t in found.items() if t.rises}
    down = {
        name: -t.change / t.first
        for name, t in found.items()
        if t.falls and t.first > 0 and -t.change >= _OWN_FALL * t.first
    }
    if not (rising and down):
        return Reading(0, {"falls": {}})
    worst = max(down, key=lambda name: down[name])
    best = max(rising, key=lambda name: rising[name].change)
    gain = rising[best].change
    values = {"falls": down, "falling": worst, "loss": down[worst], "rising": best, "gain": gain}
    return Reading(LARGE, values, 0.9)
