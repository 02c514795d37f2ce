"""What a check found, as JSON and in words: where, how much, by which names, and what to do next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rlvr_debug.replay.declared import ALGORITHMS
from rlvr_debug.replay.finding import (
    AGREES,
    DEVIATES,
    FAILED,
    NONE,
    NOT_SEEN,
    Consequence,
    Finding,
    unseen_text,
)

# an answer is printed by a process that needs no torch, whose import takes as long as a check
if TYPE_CHECKING:
    from rlvr_debug.replay.check import Checked
    from rlvr_debug.replay.record import Record

AGREED, COULD_NOT, DEVIATED = 0, 2, 3  # exit statuses
_MOST = 3  # names that the sentence has
# consequences that say why advantages are 0, and those that no run which learns has
_EQUAL = ("rewards of prompts", "contrast")
_PLAIN = (
    *("distinct prompts", "header", "rendered twice", "tasks of a group"),
    *("rewards of prompts", "rate in effect", "weights moved"),
)


def answer_of(record: Record, checked: Checked) -> dict[str, Any]:
    """Return all that is told of a check, as JSON."""
    from rlvr_debug.replay.consequences import measured

    first, (consequences, failed) = checked.first, measured(_as_found(record, checked))
    bad = [each for each in consequences if not each.passed]
    plain = [each for each in bad if each.name in _PLAIN]
    told = {
        "trainer": record.trainer,
        "generations": len(record.generations),
        "updates": len(record.updates),
        "first": first.segment if first else None,
        "later": [each.segment for each in checked.deviating if each is not first],
        "answer": _sentence(checked, plain),
        "names": [asdict(name) for name in first.names] if first else [],
        "hypotheses": list(first.causes) if first else [],
        "next": _next(checked, plain, bad),
        "segments": [_told(finding) for finding in checked.findings],
        "consequences": [asdict(each) for each in consequences],
        "remarks": [each.said for each in consequences if not each.passed],
        "failed": list(failed),
        "notes": [*dict.fromkeys(record.notes), *_unshown(record, bad), *failed],
        "tokens": _tokens(record, first),
        "prompt": _prompt(record),
    }
    return {name: _in_json(value) for name, value in told.items()}


def _unshown(record: Record, bad: Sequence[Consequence]) -> list[str]:
    """Return a line for each reward function whose mistakes these steps cannot show, unless one says so that is `bad`."""
    from rlvr_debug.replay.consequences.rewarded import constant

    said = " ".join(each.said for each in bad)
    shown = "these steps cannot show whether it is right"
    return [
        f"{name} gives each completion {value:g}: {shown}"
        for name, value in constant(record)
        if name not in said
    ]


def _as_found(record: Record, checked: Checked) -> Record:
    """Return the record with the algorithm that its loss is found to be, so that settings are read as that one reads them."""
    loss = next((each for each in checked.findings if each.segment == "loss"), None)
    if loss is None or loss.declared or not loss.own or not loss.algorithms:
        return record
    found = {**record.own.declared, "loss": _likeliest(loss.algorithms, loss.own)}
    return replace(record, own=replace(record.own, declared=found))


def _likeliest(algorithms: Sequence[str], own: str) -> str:
    """Return the algorithm that the code is named for, or else the first."""
    return max(algorithms, key=lambda name: (name in own.lower()) * len(name))


def _told(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in asdict(finding).items() if name != "places"}


def _in_json(told: Any) -> Any:
    """Return it with six digits of each number, as tables have: the last ones of sums are others in the next process.

    What is infinite is None, as JSON has no word for it.
    """
    if isinstance(told, float):
        return float(f"{told:.6g}") if math.isfinite(told) else None
    if isinstance(told, Mapping):
        return {name: _in_json(value) for name, value in told.items()}
    return [*map(_in_json, told)] if isinstance(told, list | tuple) else told


def _sentence(checked: Checked, plain: Sequence[Consequence]) -> str:
    """Return the answer in a sentence. plain: what is out of its bounds, and keeps a run from learning."""
    first = checked.first
    if first is not None:
        return deviation_text(_told(first))
    if all(each.status == NOT_SEEN for each in checked.findings):
        return f"No segment was seen: {checked.findings[0].note}."
    but = unseen_text(map(_told, checked.findings))
    if plain:
        return f"No segment deviates, but {'; '.join(filter(None, [plain[0].said, but]))}."
    if but:
        return f"Nothing was found; {but}."
    count = sum(finding.status == AGREES for finding in checked.findings)
    return f"Nothing was found: all {count} segments of these steps agree with their reference."


def deviation_text(each: Mapping[str, Any]) -> str:
    """Return of a segment that deviates what gives it, where and how much, and whose code lies there. each: as in the answer."""
    segment, own = each["segment"], each.get("own", "")
    known = [*each.get("algorithms", ())]
    names = " or ".join([name["name"] for name in each["names"][:_MOST]])
    where = f"{each['note'][:1].upper()}{each['note'][1:]}."
    if each.get("declared"):
        by = f" These would give the same: {names}." if names else ""
        return f"{segment}: not what was declared, {each['declared']}.{by} {where}"
    if own and segment in ALGORITHMS:
        likely = [_likeliest(known, own)] if known else []
        others = [name for name in known if name not in likely][: _MOST - 1]
        by = " or ".join([*likely, *others]) if known else names
        by = f" It computes what {by} would." if known else f" Known as: {by}." if by else ""
        how = f"`--expect {segment}={likely[0] if likely else 'NAME'}` or `rlvr_debug.expect({segment}=...)`"
        meant = f"If that is meant, declare it: {how}."
        return f"{segment}: not GRPO's as set: {own}.{by} {where} {meant}"
    code = f" There {own}." if own else ""
    what = names or "not what was expected, and no known mistake gives it"
    return f"{segment}: {what}. {where}{code}"


def later_text(segments: Sequence[str]) -> str:
    """Return what is said of the segments that deviate after the first."""
    return f"After it, and maybe because of it: {', '.join(segments)}."


def _next(checked: Checked, plain: Sequence[Consequence], bad: Sequence[Consequence]) -> str:
    if all(each.status == NOT_SEEN for each in checked.findings):
        return "have the trainer write a record of its steps (docs/record.md)."
    first = checked.first
    if first is None and plain:
        return f"{plain[0].fix}."
    if first is None:
        return (
            "read the log with `rlvr-debug diagnose`, and test settings by experiment. These steps compute "
            "what the settings ask for, which may still be wrong."
        )
    if first.segment == "effect":
        from rlvr_debug.replay.segments.whole import STILL

        equal = [
            each.fix for each in bad if each.name in _EQUAL and "every advantage" in first.note
        ]
        return f"{[*(STILL[why] for why in first.note.split('; ') if why in STILL), *equal][-1]}."
    from rlvr_debug.replay.variants import next_for

    if first.declared:
        return f"Compute {first.declared} there, or take the declaration back (`--expect`, `rlvr_debug.expect`)."
    if first.names and not (first.own and first.algorithms):
        return f"{first.causes[0]}: {next_for(first.segment, first.names[0].name)}"
    from rlvr_debug.replay.segments import SEGMENTS

    which = f" Related hypotheses: {', '.join(first.causes)}." if first.causes else ""
    segment = next(each for each in SEGMENTS if each.name == first.segment)
    file = f"{segment.instances.__module__.replace('.', '/')}.py"
    return f"{next_for(first.segment)} The reference: {file}.{which}"


def _tokens(record: Record, first: Finding | None) -> list[dict[str, Any]]:
    """Return the rollouts that deviate, with the tokens' places: at most eight of them."""
    if first is None or not first.places:
        return []
    found: dict[tuple[int, int], set[int]] = {}
    for place in first.places:
        found.setdefault((place.generation, place.row), set()).add(place.token)
    shown, decode = [], record.tokenizer.decode if record.tokenizer else (lambda ids: str(*ids))
    for (generation, row), places in [*found.items()][:8]:
        batch = record.generations[generation].batch
        if batch is not None:
            ids = batch.completion_ids[row][batch.completion_mask[row].bool()].tolist()
            tokens = [decode([token]) for token in ids]
            where = {"generation": generation + 1, "row": row + 1}
            shown.append({**where, "tokens": tokens, "places": sorted(places)})
    return shown


def _prompt(record: Record) -> str | None:
    """Return the first row's prompt as the policy reads it, in its template; None where its tokens were not seen, or are none."""
    from rlvr_debug.replay.consequences.given import prompts_read

    ids = next((ids for ids, _ in prompts_read(record)), None)
    if ids is None or record.tokenizer is None:
        return None
    with suppress(
        Exception
    ):  # of somebody's tokenizer, or of ids that it has not: the segments answer
        said: str = record.tokenizer.decode(ids)
        return said
    return None


def timeless(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a study keeps of an answer: no seconds, which are others each time, and not what a baseline reads."""
    kept = {name: value for name, value in answer.items() if name != "seconds"}
    left_out = ("seconds", "total", "ratio")
    segments = [{k: v for k, v in s.items() if k not in left_out} for s in kept["segments"]]
    return {**kept, "segments": segments}


def status_of(answer: Mapping[str, Any], strict: bool = False) -> int:
    """Return the exit status. strict: what is out of a bound as it is set counts as what deviates."""
    if any(each["status"] == FAILED for each in answer["segments"]) or answer.get("failed"):
        return COULD_NOT
    return DEVIATED if answer["first"] or (strict and answer["remarks"]) else AGREED


def answer_text(answer: Mapping[str, Any], verbose: bool = False, prompt: bool = False) -> str:
    """Return the answer as it is printed: segments that do not agree, the settings, the first deviation, what to do next.

    verbose: all segments, and what the settings were held to. prompt: the first one, as the policy reads it.
    """
    seconds = answer.get("seconds", {})
    ran = f" in {seconds['steps']:.1f} s" if "steps" in seconds else ""  # a record was read
    took = f", checked in {seconds['check']:.1f} s" if seconds else ""
    lines = [
        f"{answer['trainer']}: {answer['generations']} generations and {answer['updates']} updates{ran}{took}",
        "",
    ]
    hidden = () if verbose else (AGREES, NONE)
    shown = [e for e in answer["segments"] if e["status"] not in hidden or e.get("declared")]
    wide = max((len(each["segment"]) for each in shown), default=0)
    lines += [f"  {each['segment']:{wide}}  {_row(each)}" for each in shown]
    counts = Counter(e["status"] for e in answer["segments"] if e not in shown)
    if counts:
        none = f"; {counts[NONE]} are not in these steps" if counts[NONE] else ""
        lines.append(f"  {counts[AGREES]} segments agree{none} (-v lists them)")
    settings = ["", *_settings(answer, verbose)]
    said = [answer["answer"], *([later_text(later)] if (later := answer.get("later")) else [])]
    found = ["", *said, f"Next: {answer['next']}"]
    lines += [*found, *settings] if answer["first"] else [*settings, *found]
    lines += [f"Note: {note}." for note in answer["notes"]]
    if prompt:
        read = answer["prompt"]
        first = "was not seen" if read is None else f"as the policy reads it:\n{read}"
        lines += ["", f"The first prompt {first}"]
    return "\n".join(lines)


def _settings(answer: Mapping[str, Any], verbose: bool) -> list[str]:
    """Return the lines about what is computed as it is set, and teaches nothing."""
    measured = answer["consequences"]
    bad = [each for each in measured if not each["passed"]]
    head = f"Settings: {len(measured) - len(bad)} of {len(measured)} within their bounds"
    lines = [head + ("; out of bounds:" if bad else ".")]
    for each in measured if verbose else bad:
        values = ", ".join(_measured(name, value) for name, value in each["measured"].items())
        if not each["passed"] and each["said"] in answer["answer"]:
            lines.append(f"  {each['name']}: see below.")
        else:
            lines.append(f"  {each['name']}: {values if each['passed'] else each['said']}.")
            lines += [] if each["passed"] else [f"    To change it: {each['fix']}."]
        lines += [f"    Bound: {each['bound']}. Why: {each['reason']}."] if verbose else []
    return lines


def _measured(name: str, value: float | None) -> str:
    """Return a measured quantity in words; None is what JSON has for infinity."""
    return f"{name.replace('_', ' ')} {'infinite' if value is None else f'{value:.3g}'}"


def _row(each: Mapping[str, Any]) -> str:
    if each["status"] in (NOT_SEEN, FAILED):
        return f"{each['status']}  {each['note']}"
    if each["status"] == NONE:
        return "none      in these steps"
    share = each["share"]
    meant = f", as declared: {each['declared']}" if each.get("declared") else ""
    if each["status"] == DEVIATES:
        much = "" if share is None else f"{share:.3g} times its tolerance; "
        names = "; ".join(name["name"] for name in each["names"]) or "no known mistake gives it"
        return f"DEVIATES  {much}{names}"
    return f"agrees    {share:.0%} of its tolerance{meant}" if share else f"agrees{meant}"


def first_answer(answer: Mapping[str, Any]) -> str:
    """Return which segments of the case's first steps are not what a healthy run computes. answer: as answer_of returns it."""
    segments = answer["segments"]
    if all(each["status"] == NOT_SEEN for each in segments):
        return f"the case's first steps were not seen: {segments[0]['note']}"
    found = []
    for each in (one for one in segments if one["status"] == DEVIATES):
        # where no variant gives what was computed, those that it speaks for
        causes = [name["cause"] for name in each["names"]] or each["causes"]
        found.append(f"{each['segment']} ({' or '.join(dict.fromkeys(causes)) or 'nothing known'})")
    but = f"; {unseen}" if (unseen := unseen_text(segments)) else ""
    if not found:
        return f"the case's first steps are those of a healthy run{but}"
    return f"the case differs from a healthy run in: {', '.join(found)}{but}"
