"""Rewards, their parts, and groups: whether there is anything to learn from."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from rlvr_debug.diagnose.checks.base import LARGE, MILD, STOPS, Check, Shown, from_the_start, trend
from rlvr_debug.diagnose.logs import Array, Log
from rlvr_debug.diagnostics.rewards import correlations

__all__ = ["CHECKS"]

_DEAD = (0.5, 0.75, 0.9)
_COPIES = (0.5, 0.9)
_SAME = 1e-6
_TINY_STD = 0.1
_TINY_GROUPS = 0.05
_CONFLICT = -0.5
_Z = 3.0
_PART_CHANGE = 0.1
_ENTROPY_DOWN = 0.1
_TOLERANCE = 1e-3


def _by_share(share: float) -> int:
    return STOPS if share >= _DEAD[2] else LARGE if share >= _DEAD[1] else MILD


def constant_reward(log: Log) -> Shown | None:
    rewards = log.series("reward")
    if rewards.size < 4 and log.has("completions.reward"):
        rewards = log.completions["reward"].dropna().to_numpy(dtype=np.float64)
    if rewards.size < 4:
        return None
    scale = float(np.abs(rewards).max())
    spread = float(rewards.max() - rewards.min())
    within = log.series("reward_std")
    measured = {"largest less smallest reward": spread}
    if spread <= _SAME * scale and (not within.size or within.max() <= _SAME * max(scale, 1e-300)):
        text = f"The reward is {rewards[0]:.3g} throughout: nothing that the model does changes it."
        return Shown(STOPS, measured, text, 1.0)
    return Shown(
        0, measured, f"The reward varies, between {rewards.min():.3g} and {rewards.max():.3g}."
    )


def _groups(log: Log) -> pd.api.typing.DataFrameGroupBy | None:  # type: ignore[type-arg]
    """Of the completions, those of one prompt in one step; only groups of at least two."""
    table = log.completions
    if table.empty:
        return None
    sizes = table.groupby(["step", "prompt"])["prompt"].transform("size")
    kept = table[sizes > 1]
    return kept.groupby(["step", "prompt"]) if len(kept) else None


def dead_groups(log: Log) -> Shown | None:
    shares = log.series("dead_groups")
    share = from_the_start(shares) if shares.size else _dead_share(log)
    if share is None:
        return None
    measured = {"share of groups with equal rewards": share}
    if share >= _DEAD[0]:
        text = f"In {share:.0%} of the groups all rewards are equal: these teach nothing."
        return Shown(_by_share(share), measured, text, share)
    return Shown(0, measured, f"In {share:.0%} of the groups all rewards are equal.")


def _dead_share(log: Log) -> float | None:
    groups = _groups(log)
    if groups is None or "reward" not in log.completions:
        return None
    spread = groups["reward"].max() - groups["reward"].min()
    scale = float(log.completions["reward"].abs().max()) or 1.0
    return _of_early_groups(spread <= _SAME * scale)


def _of_early_groups(dead: pd.Series) -> float:
    """The same of groups, one value each, by (step, prompt): those of the first third of the steps."""
    steps = dead.index.get_level_values("step")
    known = np.unique(steps.to_numpy())
    early = steps <= known[max(0, known.size // 3 - 1)]
    return float(min(dead[early].mean(), dead.mean()))


def equal_rewards(log: Log) -> Shown | None:
    """Groups whose completions differ and whose rewards do not."""
    groups = _groups(log)
    if groups is None:
        return None
    rewards = groups["reward"]
    scale = float(log.completions["reward"].abs().max()) or 1.0
    dead = (rewards.max() - rewards.min()) <= _SAME * scale
    different = groups["completion"].nunique() > 1
    share = _of_early_groups(dead & different)
    measured = {"share of groups with different completions and equal rewards": share}
    if share >= _DEAD[0]:
        text = f"In {share:.0%} of the groups different completions earn the same reward."
        return Shown(_by_share(share), measured, text, share)
    return Shown(0, measured, f"In {share:.0%} of the groups different completions earn the same.")


def duplicates(log: Log) -> Shown | None:
    groups = _groups(log)
    if groups is None:
        return None
    sizes = groups.size()
    copies = _of_early_groups((sizes - groups["completion"].nunique()) / (sizes - 1))
    measured = {"share of copies within groups": copies}
    if copies >= _COPIES[0]:
        strength = STOPS if copies >= _COPIES[1] else LARGE
        text = (
            f"{copies:.0%} of the completions that could differ from the others of their group are copies: "
            "sampled too cold, or once for all."
        )
        return Shown(strength, measured, text, copies)
    return Shown(0, measured, f"{copies:.0%} of the completions are copies within their group.")


def group_means(log: Log) -> Shown | None:
    groups = _groups(log)
    if groups is None:
        return None
    means = groups["advantage"].mean().abs()
    scale = float(log.completions["advantage"].abs().max())
    if not scale or not np.isfinite(scale):
        return None
    share = float((means > 0.05 * scale).mean())
    measured = {"share of groups whose advantages do not sum to 0": share}
    if share >= 0.1:
        text = f"In {share:.0%} of the groups advantages do not sum to 0: groups are mixed up, or normalised otherwise."
        return Shown(LARGE, measured, text, share)
    return Shown(0, measured, "Advantages sum to 0 in their groups.")


def advantage_bound(log: Log) -> Shown | None:
    groups = _groups(log)
    if groups is None:
        return None
    sizes = groups["advantage"].transform("size").to_numpy(dtype=np.float64)
    largest = log.completions.loc[groups["advantage"].transform("size").index, "advantage"].abs()
    excess = float((largest.to_numpy() / ((sizes - 1) / np.sqrt(sizes))).max())
    measured = {"largest advantage over (G - 1) / sqrt(G)": excess}
    if excess > 1 + _TOLERANCE and log.completions["reward"].abs().max() <= 1:
        text = f"An advantage is {excess:.2f} times what scaling by the group's deviation can give."
        return Shown(LARGE, measured, text, min(1.0, excess / 100))
    return Shown(0, measured, "Advantages are within what scaling can give.")


def tiny_deviations(log: Log) -> Shown | None:
    groups = _groups(log)
    if groups is not None and "reward" in log.completions:
        scale = float(log.completions["reward"].abs().max())
        deviations = groups["reward"].std()
        live = deviations[deviations > _SAME * scale]
        if not scale or len(live) < 10:
            return None
        share = _of_early_groups(live < _TINY_GROUPS * scale)
        measured = {"share of live groups with a tiny deviation": share}
        if share >= 0.5:
            text = f"{share:.0%} of the groups that teach differ by under 5 % of the largest reward: noise is scaled up."
            return Shown(LARGE if share >= _DEAD[2] else MILD, measured, text, share)
        return Shown(0, measured, f"{share:.0%} of the live groups have tiny deviations.")
    shares = log.series("tiny_std_share")
    if shares.size:
        share = float(np.median(shares))
        found = share >= 0.5
        text = f"{share:.0%} of the squared gradient comes from groups with a deviation below 0.05."
        return Shown(LARGE if found else 0, {"share of the gradient": share}, text, share)
    deviations_ = log.series("group_std") if log.has("group_std") else log.series("reward_std")
    rewards = log.series("reward")
    scale = float(np.abs(rewards).max()) if rewards.size else 0.0
    if not scale or not deviations_.size:
        return None
    ratio = float(np.median(deviations_)) / scale
    measured = {"deviation of rewards over the largest": ratio}
    if _SAME < ratio < _TINY_STD:
        text = f"Rewards deviate by {ratio:.1%} of their size: scaling makes large advantages of small differences."
        return Shown(MILD, measured, text, 1 - ratio / _TINY_STD)
    return Shown(0, measured, f"Rewards deviate by {ratio:.0%} of their size.")


def parts_pull_apart(log: Log) -> Shown | None:
    """Over the run: one part of the reward rises while another falls."""
    found = {
        name: change
        for name in log.parts
        if (change := trend(log.parts[name].dropna().to_numpy(dtype=np.float64)))
    }
    if len(found) < 2:
        return None
    scale = max(float(np.nanmax(np.abs(log.parts.to_numpy(dtype=np.float64)))), 1e-300)
    up = {n: t for n, t in found.items() if t.z >= _Z and t.change >= _PART_CHANGE * scale}
    down = {n: t for n, t in found.items() if t.z <= -_Z and -t.change >= _PART_CHANGE * scale}
    measured = {f"change of {name}": each.change for name, each in found.items()}
    if up and down:
        rising = max(up, key=lambda name: up[name].change)
        falling = min(down, key=lambda name: down[name].change)
        text = (
            f"The part {rising} rises by {up[rising].change:.2g} while {falling} falls by "
            f"{-down[falling].change:.2g}: one is learned at the other's cost."
        )
        return Shown(LARGE, measured, text, min(1.0, up[rising].change / scale))
    return Shown(0, measured, "No part of the reward rises while another falls.")


def parts_conflict(log: Log) -> Shown | None:
    """Within groups, rollout by rollout: two parts of the reward against each other."""
    groups = _groups(log)
    names = [str(name) for name in log.completions if str(name).startswith("part/")]
    if groups is None or len(names) < 2:
        return None
    centred = log.completions.loc[groups["step"].transform("size").index, names]
    centred = centred - groups[names].transform("mean")
    values: Array = centred.dropna().to_numpy(dtype=np.float64).T
    if values.shape[1] < 10:
        return None
    matrix = correlations(values)
    pairs = {
        (a, b): float(matrix[a, b])
        for a, b in itertools.combinations(range(len(names)), 2)
        if np.isfinite(matrix[a, b])
    }
    if not pairs:
        return None
    (a, b), worst = min(pairs.items(), key=lambda item: item[1])
    one, other = names[a].removeprefix("part/"), names[b].removeprefix("part/")
    if worst <= _CONFLICT:
        text = f"Within groups, the parts {one} and {other} pull apart (correlation {worst:.2f})."
        return Shown(LARGE if worst <= -0.8 else MILD, {"least correlation": worst}, text, -worst)
    return Shown(0, {"least correlation": worst}, "Parts of the reward do not pull apart.")


def dead_part(log: Log) -> Shown | None:
    stds = {name: log.part_stds[name].dropna() for name in log.part_stds}
    still = [str(name) for name, each in stds.items() if len(each) >= 4 and (each == 0).all()]
    if len(stds) < 2:
        return None
    measured = {"parts without spread": float(len(still))}
    if still:
        text = f"Of the reward's parts, {', '.join(still)} never differ between rollouts."
        return Shown(MILD, measured, text, len(still) / len(stds))
    return Shown(0, measured, "Every part of the reward varies.")


def entropy_collapses(log: Log) -> Shown | None:
    found = trend(log.series("entropy"))
    if found is None or found.first <= 0:
        return None
    measured = {"first third": found.first, "last third": found.last}
    if found.z <= -_Z and found.last <= _ENTROPY_DOWN * found.first:
        text = f"Entropy falls from {found.first:.3g} to {found.last:.3g} nats: the samples of a group become alike."
        return Shown(MILD, measured, text, 1 - max(0.0, found.last / found.first))
    return Shown(0, measured, f"Entropy goes from {found.first:.3g} to {found.last:.3g} nats.")


_TABLE = ("completions.reward",)
CHECKS = (
    Check(
        "constant-reward",
        "reward-signal",
        (("reward",), _TABLE),
        "the reward is not the same number at every step",
        "relative 1e-6, rounding of float32",
        constant_reward,
        ("dead-groups", "equal-rewards", "gradient-zero", "tiny-deviations"),
    ),
    Check(
        "equal-rewards",
        "reward-signal",
        (_TABLE,),
        "less than half of the groups have different completions and equal rewards (large from 75 %)",
        "the criterion of reward-signal: groups lack contrast; at half, a useful group costs twice",
        equal_rewards,
        ("dead-groups", "gradient-zero"),
    ),
    Check(
        "parts-pull-apart",
        "reward-signal",
        (("parts",),),
        "no part rises by 10 % of the largest while another falls by as much (3 standard errors)",
        "verdicts.minimum_effect of params.yaml: 0.1 of a reward up to 1",
        parts_pull_apart,
    ),
    Check(
        "parts-conflict",
        "reward-signal",
        (("completions.reward",),),
        "correlation of two parts within groups above -0.5",
        "below, a quarter of one part's variance works against the other",
        parts_conflict,
    ),
    Check(
        "dead-part",
        "reward-signal",
        (("parts",),),
        "every part of the reward has a standard deviation above 0 at some step",
        "docs/diagnostics.md: 0 gives no signal",
        dead_part,
    ),
    Check(
        "duplicates",
        "group-construction",
        (("completions",),),
        "less than half of the completions copy another of their group (stops from 90 %)",
        "then groups are on average of less than half their size",
        duplicates,
        ("dead-groups", "gradient-zero", "equal-rewards"),
    ),
    Check(
        "dead-groups",
        "group-construction",
        (("dead_groups",), _TABLE),
        "less than half of the groups have equal rewards from the start on (large from 75 %, stops from 90 %)",
        "the criterion of group-construction, most groups are dead; at half, a useful group costs twice",
        dead_groups,
        ("gradient-zero",),
    ),
    Check(
        "group-means",
        "group-construction",
        (("completions.advantage",),),
        "advantages sum to 0 within 5 % of the largest in nine of ten groups",
        "exact by construction; equal prompts in one step are taken for one group",
        group_means,
    ),
    Check(
        "entropy-collapses",
        "group-construction",
        (("entropy",),),
        "entropy above a tenth of its start",
        "an order of magnitude; it falls in every run that learns",
        entropy_collapses,
    ),
    Check(
        "advantage-bound",
        "advantage-scaling",
        (("completions.advantage", "completions.reward"),),
        "no advantage above (G - 1) / sqrt(G)",
        "with the unbiased deviation none can be (docs/hypotheses.md); rewards up to 1",
        advantage_bound,
    ),
    Check(
        "tiny-deviations",
        "advantage-scaling",
        (_TABLE, ("tiny_std_share",), ("group_std", "reward"), ("reward_std", "reward")),
        "fewer than half of the live groups with a deviation below 5 % of the largest reward from the start on (large "
        "from 90 %); without groups, "
        "deviation above 10 % of it",
        "the criteria of advantage-scaling (0.05) and reward-signal (0.1); half of them are so in a healthy run of "
        "tests/logs",
        tiny_deviations,
    ),
)
