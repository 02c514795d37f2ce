"""What a log shows for multi-step."""

from collections import Counter

from rlvr_debug.causes.check import LARGE, MILD, Passage, Reading, graded, trend
from rlvr_debug.causes.readings import tool_results
from rlvr_debug.logs.log import Log

_FEW_CALLS = 0.5
_RARE = 0.1  # calls per rollout
_FAILED_CALLS = {MILD: 0.5, LARGE: 0.6}
_FEWEST_RESULTS = 8
_ALIKE = {MILD: 0.4, LARGE: 0.6}


def few_tool_calls(log: Log) -> Reading | None:
    found = trend(log.series("tool_calls"))
    if found is None:
        return None
    rewards = log.series("reward")
    # calls that never were are missed where nothing is earned without them
    unused = found.first <= _RARE and found.last == 0 and (not rewards.size or rewards.max() <= 0)
    stops = found.first > _RARE and (
        found.last == 0 or (found.falls and found.last <= _FEW_CALLS * found.first)
    )
    few = unused or stops
    return Reading(MILD if few else 0, {"first": found.first, "last": found.last})


def tool_failures(log: Log) -> Reading | None:
    share = float(log.series("tool_failures").mean())
    calls = log.series("tool_calls")
    if calls.size and calls.mean() <= _RARE:
        return Reading(0, {"share": share})
    return Reading(graded(share, _FAILED_CALLS), {"share": share}, share)


def tools_alike(log: Log) -> Reading | None:
    """What tools say, conversation by conversation: the same text, or none, whatever was asked."""
    said = tool_results(log)
    results = [text.strip() for each in said.values() for text in each]
    if len(results) < _FEWEST_RESULTS:
        return None
    text, count = Counter(results).most_common(1)[0]
    share = count / len(results)
    shown = f"\u201c{text[:60]}\u201d" if text else "nothing"
    with_it = tuple(
        Passage(row, text=text) for row, each in said.items() if text in [t.strip() for t in each]
    )
    values = {"share": share, "text": shown}
    return Reading(graded(share, _ALIKE), values, share, rollouts=with_it)
