"""Groups of completions in a log: those of one prompt in one step. Several causes read them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Passage
from rlvr_debug.logs.log import Log

Groups: TypeAlias = "pd.api.typing.DataFrameGroupBy[Any, Any]"

DEAD = {MILD: 0.5, LARGE: 0.75, STOPS: 0.9}
SAME = 1e-6


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
