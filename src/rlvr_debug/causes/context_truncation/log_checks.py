"""What a log shows for context-truncation."""

import numpy as np

from rlvr_debug.causes.check import (
    LARGE,
    MILD,
    STOPS,
    Passage,
    Reading,
    correlation,
    from_the_start,
    graded,
    later,
    steps_from_the_start,
)
from rlvr_debug.causes.readings import ends_in_call, prompt_is_cut
from rlvr_debug.logs.log import Log

_CUT = {MILD: 0.2, LARGE: 0.5, STOPS: 0.9}
_AGAINST = -0.7  # correlation of what is cut with the reward
_FEWEST = 6  # rows for it
_VARIES = 0.9  # of the largest length: replies of a fixed form have one length, too
_FULL = 3  # rows
_PROMPTS_CUT = {MILD: 0.2, LARGE: 0.5}


def truncation(log: Log) -> Reading | None:
    if not log.series("truncated").size:
        return _by_length(log)
    share = from_the_start(log.series("truncated"))
    limit = log.series("length_max")
    at = f", at {limit.max():.0f} tokens" if limit.size else ""
    strength, against = graded(share, _CUT), _against_reward(log)
    costs = against <= _AGAINST
    if strength and costs:
        strength = max(strength, LARGE)
    values = {"share": share, "later": later(log.series("truncated")), "at": at, "against": against}
    spoken = () if costs else steps_from_the_start(log, "truncated")
    return Reading(strength, values, max(share, -against), "costs" if costs else "", steps=spoken)


def _by_length(log: Log) -> Reading | None:
    """Of rows, the share in which the mean length is the most that any row has: all replies end where the limit is."""
    lengths = log.series("length")
    if lengths.size < _FEWEST:
        return None
    full = (lengths == lengths.max()) & (lengths.min() < _VARIES * lengths.max())
    share = from_the_start(full.astype(float))
    strength = min(graded(share, _CUT), LARGE) if full.sum() >= _FULL else 0
    return Reading(strength, {"share": share, "limit": float(lengths.max())}, share, "lengths")


def _against_reward(log: Log) -> float:
    """Return how the share that is cut goes with the reward, step by step: -1 where all that is cut earns nothing."""
    both = log.together("truncated", "reward")
    return correlation(*both.T) if len(both) >= _FEWEST else 0.0


def unanswered_calls(log: Log) -> Reading | None:
    """Conversations whose last message is a tool call: something ended them before the tool could answer."""
    table = log.completions
    ends = table["completion"].map(ends_in_call)
    known = ends.notna()
    if not known.any():
        return None
    by_step = ends[known].astype(float).groupby(table.loc[known, "step"].fillna(0)).mean()
    share = from_the_start(by_step.to_numpy(dtype=np.float64))
    shown = tuple(Passage(int(row), -1) for row in ends[known].index[ends[known].astype(bool)])
    return Reading(graded(share, _CUT), {"share": share}, share, rollouts=shown)


def prompt_truncation(log: Log) -> Reading | None:
    share = float(log.series("prompt_truncated").mean())
    return Reading(graded(share, _PROMPTS_CUT), {"share": share}, share)


def prompt_cut(log: Log) -> Reading | None:
    """Prompts whose text lacks what every chat template has at its beginning or its end."""
    known = log.completions["prompt"].map(prompt_is_cut).dropna()
    if not len(known):
        return Reading(0, {"share": 0.0}, says="none")
    cuts = known.tolist()
    share = sum(map(bool, cuts)) / len(cuts)
    side = max(("beginning", "end"), key=cuts.count)
    shown = tuple(Passage(int(row), 0) for row in known.index[known == side])
    values = {"share": share, "side": side}
    return Reading(graded(share, _PROMPTS_CUT), values, share, "known", shown)
