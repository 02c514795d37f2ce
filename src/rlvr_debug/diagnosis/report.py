"""A diagnosis as text for a terminal, and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.diagnosis.rank import Diagnosis

__all__ = [
    "diagnosis_json",
    "diagnosis_text",
    "learns_text",
    "plain",
    "strength_text",
    "wrapped",
]

_WIDTH = 100
_SHOWN = 5
_WORDS = {4: "stops learning", 3: "large", 2: "mild", 1: "no log shows it"}


def diagnosis_text(found: Diagnosis, limit: int = _SHOWN) -> str:
    """limit: how many ranked hypotheses are shown in full, 0 for all. What a terminal would obey is shown as ?."""
    lines = [
        *_head(found),
        "",
        *_ranking(found, limit),
        "",
        *_symptoms(found),
        *_unchecked(found),
        *_notes(found),
    ]
    return plain(lines)


def plain(lines: Iterable[str]) -> str:
    """Return the lines as one text, in which what a terminal would obey is shown as ?."""
    return "\n".join(
        "".join(c if c.isprintable() else "?" for c in line) for line in lines
    ).rstrip()


def learns_text(learns: bool | None) -> str:
    """Return whether the training reward rises, as a sentence."""
    return {
        True: "The training reward rises.",
        False: "The training reward does not rise.",
        None: "Whether the training reward rises cannot be told.",
    }[learns]


def strength_text(strength: int) -> str:
    """Return what a suspect's strength says, in words."""
    return _WORDS[strength]


def _head(found: Diagnosis) -> Iterator[str]:
    log, clock = found.log, found.timing
    rows = f"{len(log.steps)} rows of {clock.steps} steps" if len(log.steps) else "no steps"
    table = f", {len(log.completions)} completions" if len(log.completions) else ""
    yield f"{log.place}: {log.kind}, {rows}{table}, {len(log.sources)} known quantities"
    yield learns_text(found.learns)
    cost = f"{clock.hours:.2g} {clock.unit}" if clock.hours is not None else "unknown"
    yield f"One run of this length: {cost}, by {clock.source}."


def _ranking(found: Diagnosis, limit: int) -> Iterator[str]:
    if not found.ranked:
        yield "Nothing that is logged speaks for an experiment."
        return
    yield "Worth an experiment, most likely first:"
    limit = limit or len(found.ranked)
    for place, each in enumerate(found.ranked[:limit], start=1):
        yield f"{place:>2}. {each.slug:<24}{_WORDS[each.strength]}"
        yield from wrapped(each.reason, "    ")
        if each.refuted_by:
            yield from wrapped(f"it would be refuted by: {each.refuted_by}", "    ")
        yield from wrapped(f"cheapest next: {each.next.what}: {each.next.cost}", "    ")
    if rest := [each.slug for each in found.ranked[limit:]]:
        yield from wrapped(f"And then: {', '.join(rest)}.", "  ")


def _symptoms(found: Diagnosis) -> Iterator[str]:
    explained = [each for each in found.findings if each.explained_by]
    if explained:
        yield "Symptoms that follow from these:"
        for each in explained:
            said = f"{each.check.name} (from {each.explained_by}): {each.shown.sentence}"
            yield from wrapped(said, "  ")
        yield ""


def _unchecked(found: Diagnosis) -> Iterator[str]:
    unchecked = [each for each in found.findings if each.status == "unchecked"]
    if unchecked:
        yield "Could not be checked; what to log for it:"
        width = max(len(each.check.name) for each in unchecked) + 2
        for each in unchecked:
            yield f"  {each.check.name:<{width}}{', '.join(each.missing)}"
        yield ""


def _notes(found: Diagnosis) -> Iterator[str]:
    for note in found.notes:
        yield from wrapped(f"Note: {note}", "")
    if found.unseen:
        yield from wrapped(
            f"This log says nothing about: {', '.join(found.unseen)}. rlvr-debug check looks at them in a "
            "few steps: docs/check.md.",
            "",
        )


def wrapped(text: str, indent: str) -> Iterable[str]:
    """Return the text as lines that begin with `indent`."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """What the text says and all measurements, of plain types."""
    return {
        "place": found.log.place,
        "kind": found.log.kind,
        "rows": len(found.log.steps),
        "completions": len(found.log.completions),
        "sources": dict(found.log.sources),
        "unknown": list(found.log.unknown),
        "learns": found.learns,
        "one_run": {
            "steps": found.timing.steps,
            "seconds_per_step": found.timing.seconds,
            "hours": found.timing.hours,
            "unit": found.timing.unit,
            "source": found.timing.source,
        },
        "ranked": [
            {
                "hypothesis": each.slug,
                "claim": load_hypothesis(each.slug).claim,
                "strength": _WORDS[each.strength],
                "reason": each.reason,
                "checks": list(each.checks),
                "refuted_by": each.refuted_by,
                "next": each.next.what,
                "cost": each.next.cost,
            }
            for each in found.ranked
        ],
        "checks": [_check(each) for each in found.findings],
        "unseen": list(found.unseen),
        "notes": list(found.notes),
    }


def _check(each: Finding) -> dict[str, Any]:
    measured = each.shown.measured
    return {
        "check": each.check.name,
        "hypothesis": each.check.slug,
        "status": each.status,
        "strength": each.shown.strength,
        "measured": {k: float(v) if math.isfinite(v) else None for k, v in measured.items()},
        "threshold": each.check.threshold,
        "reason": each.check.reason,
        "sentence": each.shown.sentence,
        "explained_by": each.explained_by,
        "refuted_by": each.check.refuted_by,
        "missing": list(each.missing),
    }
