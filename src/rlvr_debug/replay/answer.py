"""What a check found, as JSON and in words: where, how much, by which names, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.replay.finding import DEVIATES, FAILED, NONE, NOT_SEEN, Finding, unseen_text

# an answer is printed by a process that needs no torch, whose import takes as long as a check
if TYPE_CHECKING:
    from rlvr_debug.replay.check import Checked
    from rlvr_debug.replay.record import Record

__all__ = [
    "AGREED",
    "COULD_NOT",
    "DEVIATED",
    "answer_of",
    "answer_text",
    "deviation_text",
    "later_text",
    "status_of",
    "timeless",
]

AGREED, COULD_NOT, DEVIATED = 0, 2, 3  # exit statuses
_MOST = 3  # names that the sentence has


def answer_of(record: Record, checked: Checked) -> dict[str, Any]:
    """Return all that is told of a check, as JSON."""
    from rlvr_debug.replay.consequences import consequences_of

    first, consequences = checked.first, consequences_of(record)
    told = {
        "trainer": checked.trainer,
        "generations": checked.generations,
        "updates": checked.updates,
        "first": first.segment if first else None,
        "answer": _sentence(checked),
        "names": [asdict(name) for name in first.names] if first else [],
        "hypotheses": list(first.causes) if first else [],
        "next": _next(checked),
        "segments": [_told(finding) for finding in checked.findings],
        "consequences": [asdict(each) for each in consequences],
        "remarks": [each.said for each in consequences if not each.passed],
        "notes": list(checked.notes),
        "tokens": _tokens(record, first),
    }
    return {name: _in_json(value) for name, value in told.items()}


def _told(finding: Finding) -> dict[str, Any]:
    told = asdict(finding)
    del told["places"]
    return told


def _in_json(told: Any) -> Any:
    """Return it with six digits of each number, as tables have: the last ones of sums are others in the next process.

    What is infinite is None, as JSON has no word for it.
    """
    if isinstance(told, float):
        return float(f"{told:.6g}") if math.isfinite(told) else None
    if isinstance(told, Mapping):
        return {name: _in_json(value) for name, value in told.items()}
    return [*map(_in_json, told)] if isinstance(told, list | tuple) else told


def _sentence(checked: Checked) -> str:
    first = checked.first
    if first is not None:
        return deviation_text(_told(first))
    if _nothing_seen(checked):
        return f"No segment was seen: {checked.findings[0].note}."
    but = unseen_text(map(_told, checked.findings))
    return f"Every segment that was seen agrees with its reference{but}."


def deviation_text(each: Mapping[str, Any]) -> str:
    """Return of a segment that deviates what gives it, and where and how much. each: as the answer has it."""
    names = " or ".join(name["name"] for name in each["names"][:_MOST])
    note = each["note"]
    return f"{each['segment']}: {names or 'a fault that nothing known gives'}. {note[:1].upper()}{note[1:]}."


def later_text(segments: Sequence[str]) -> str:
    """Return what is said of the segments that deviate after the first."""
    return f"After it, and maybe because of it: {', '.join(segments)}."


def _nothing_seen(checked: Checked) -> bool:
    return all(finding.status == NOT_SEEN for finding in checked.findings)


def _next(checked: Checked) -> str:
    if _nothing_seen(checked):
        return "have the trainer write a record of its steps (docs/record.md)."
    first = checked.first
    if first is None:
        return (
            "These steps compute what they are asked for. What is as it is set may still be wrong: "
            "read the log with `rlvr-debug diagnose`, and test settings by experiment."
        )
    if not first.names:
        which = f" Hypotheses that speak of it: {', '.join(first.causes)}." if first.causes else ""
        return f"compare what the trainer does there with the reference, {_file(first.segment)}.{which}"
    hypothesis = load_hypothesis(first.causes[0])
    return f"{first.causes[0]}: {hypothesis.next_steps}"


def _file(segment: str) -> str:
    """Return the file that computes a segment again."""
    from rlvr_debug.replay.segments import SEGMENTS

    module = next(each for each in SEGMENTS if each.name == segment).instances.__module__
    return f"{module.replace('.', '/')}.py"


def _tokens(record: Record, first: Finding | None) -> list[dict[str, Any]]:
    """Return the rollouts that deviate, with the tokens' places: at most eight of them."""
    if first is None or not first.places:
        return []
    found: dict[tuple[int, int], list[int]] = {}
    for place in first.places:
        found.setdefault((place.generation, place.row), []).append(place.token)
    shown = []
    for (generation, row), places in list(found.items())[:8]:
        batch = record.generations[generation].batch
        if batch is None:
            continue
        ids = batch.completion_ids[row][batch.completion_mask[row].bool()].tolist()
        texts = (
            [record.tokenizer.decode([token]) for token in ids]
            if record.tokenizer
            else list(map(str, ids))
        )
        shown.append(
            {
                "generation": generation + 1,
                "row": row + 1,
                "tokens": texts,
                "places": sorted(set(places)),
            }
        )
    return shown


def timeless(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a study keeps of an answer: no seconds, which are others each time, and not what a baseline reads."""
    kept = {name: value for name, value in answer.items() if name != "seconds"}
    left_out = ("seconds", "total", "ratio")
    segments = [{k: v for k, v in s.items() if k not in left_out} for s in kept["segments"]]
    return {**kept, "segments": segments}


def status_of(answer: Mapping[str, Any]) -> int:
    """Return the exit status."""
    if any(each["status"] == FAILED for each in answer["segments"]):
        return COULD_NOT
    return DEVIATED if answer["first"] else AGREED


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return the answer as it is printed: a table of segments, the first deviation, what to do next."""
    seconds = answer.get("seconds", {})
    ran = f" in {seconds['steps']:.1f} s" if "steps" in seconds else ""  # a record was read
    took = f", checked in {seconds['check']:.1f} s" if seconds else ""
    lines = [
        f"{answer['trainer']}: {answer['generations']} generations and {answer['updates']} updates{ran}{took}",
        "",
    ]
    wide = max(len(each["segment"]) for each in answer["segments"])
    lines += [f"  {each['segment']:{wide}}  {_row(each)}" for each in answer["segments"]]
    lines += ["", answer["answer"]]
    if answer["first"]:
        others = [e["segment"] for e in answer["segments"] if e["status"] == DEVIATES][1:]
        if others:
            lines.append(later_text(others))
    lines += [f"Next: {answer['next']}"]
    lines += [f"As it is set: {remark}." for remark in answer["remarks"]]
    lines += [f"Note: {note}." for note in answer["notes"]]
    return "\n".join(lines)


def _row(each: Mapping[str, Any]) -> str:
    if each["status"] in (NOT_SEEN, FAILED):
        return f"{each['status']}  {each['note']}"
    if each["status"] == NONE:
        return "none      in these steps"
    share = each["share"]
    if each["status"] == DEVIATES:
        much = "" if share is None else f"{share:.3g} times its tolerance; "
        names = "; ".join(name["name"] for name in each["names"]) or "no known variant gives it"
        return f"DEVIATES  {much}{names}"
    return f"agrees    {share:.0%} of its tolerance" if share else "agrees"
