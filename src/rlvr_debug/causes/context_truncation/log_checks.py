"""What a log shows for context-truncation."""

from __future__ import annotations

import json

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, from_the_start, graded
from rlvr_debug.logs.log import Log

_CUT = {MILD: 0.2, LARGE: 0.5, STOPS: 0.9}
_PROMPTS_CUT = {MILD: 0.2, LARGE: 0.5}


def truncation(log: Log) -> Reading | None:
    share = from_the_start(log.series("truncated"))
    limit = log.series("length_max")
    at = f", at {limit.max():.0f} tokens" if limit.size else ""
    return Reading(graded(share, _CUT), {"share": share, "at": at}, share)


def unanswered_calls(log: Log) -> Reading | None:
    """Conversations whose last message is a tool call: something ended them before the tool could answer."""
    table = log.completions
    ends = table["completion"].map(_ends_in_call)
    known = ends.notna()
    if not known.any():
        return None
    by_step = ends[known].astype(float).groupby(table.loc[known, "step"].fillna(0)).mean()
    share = from_the_start(by_step.to_numpy(dtype=np.float64))
    return Reading(graded(share, _CUT), {"share": share}, share)


def _ends_in_call(completion: str) -> bool | None:
    """None of what is no list of messages."""
    if not completion.startswith("["):
        return None
    try:
        messages = json.loads(completion)
    except (ValueError, RecursionError):
        return None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return bool(last.get("tool_calls")) if isinstance(last, dict) else None


def prompt_truncation(log: Log) -> Reading | None:
    share = float(log.series("prompt_truncated").mean())
    return Reading(graded(share, _PROMPTS_CUT), {"share": share}, share)
