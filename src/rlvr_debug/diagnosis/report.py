"""A diagnosis as text for a terminal, and as JSON."""

import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.check import trend
from rlvr_debug.diagnosis.advice import settings_of, to_log
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.diagnosis.rank import Diagnosis, Mean, Ranked
from rlvr_debug.logs.log import Log

_WIDTHS = (60, 80, 120)  # characters of a line: at least, off a terminal, at most
_LINES = 24  # of a screen
_SHOWN = 5
_ALSO = 4
_FEW = 3  # quantities beside the reward
_WORDS = {4: "stops learning", 3: "large", 2: "mild"}
_HIDDEN = "This log cannot show these, `rlvr-debug check train.py` can"
_NEVER = "No log shows a wrong mask or wrong tokens, `rlvr-debug check train.py` does."
_THOUGH = "Found, though the reward rises"


def diagnosis_text(found: Diagnosis, limit: int = _SHOWN, verbose: bool = False) -> str:
    """Return the answer, a screen of it, or with `verbose` all of it. limit: causes in full there, 0 for all."""
    lines = [*wrapped(f"{log_text(found.log)}.", ""), *_cut(found.log.ends, "")]
    lines += [*wrapped(reward_text(found), ""), *_parts(found), ""]
    if verbose:
        return "\n".join([*lines, *_all(found, limit)]).rstrip()
    whole = [*lines, *_screen(found, partial(wrapped, further="  "))]
    return "\n".join(whole if len(whole) <= _LINES else [*lines, *_screen(found, _cut)]).rstrip()


def log_text(log: Log) -> str:
    """Return which log it is, and how much of one."""
    rows = f"{len(log.steps)} rows" if len(log.steps) else "no steps"
    if len(log.steps):
        rows += f", steps {log.steps.index[0]:g} to {log.steps.index[-1]:g}"
    table = f", {len(log.completions)} completions" if len(log.completions) else ""
    return f"{log.place} ({rows}{table})"


def reward_text(found: Diagnosis) -> str:
    """Return whether the training reward rises, from what to what, and how sure that is, as a sentence."""
    if found.log.steps.empty:
        return "Only completions were given, no metrics by step: add trainer_state.json."
    if found.learns is None or found.ends is None:
        rows = found.log.series("reward").size
        if not found.log.has("reward"):
            return "No column of a reward: expected one such as reward, mean_reward or critic/score/mean."
        return f"Too few rows to see whether the reward rises: {rows or 'none'} with a reward, 9 are needed."
    first, last = found.ends
    apart = last.high < first.low
    moves = "rises" if found.learns else "falls" if apart else "does not clearly rise"
    ends = f"first and last {found.log.series('reward').size // 3} rows"
    return f"The reward {moves}: {_mean(first)} to {_mean(last)} ({ends}, 95 % intervals)."


def _mean(mean: Mean) -> str:
    return f"{mean.value:.3g} [{mean.low:.3g}, {mean.high:.3g}]"


def chance(probability: float) -> str:
    """Return a probability in percent: no log makes a cause certain or impossible."""
    return f"{min(max(round(100 * probability), 1), 99)} %"


def verdict_text(found: Diagnosis) -> str:
    """Return what is most likely wrong, or that nothing stands out, as a sentence."""
    if found.stands_out:
        first = found.ranked[0]
        return f"Most likely {first.slug} ({chance(first.probability)}): {first.reason}"
    if _too_few(found):
        log = found.log
        names = ", ".join([*(log.sources[q] for q in log.sources if q != "step"), *log.parts])
        return f"No cause stands out: {names} {'are' if ', ' in names else 'is'} all that is logged, too little to find one."
    return "No cause stands out."


def _too_few(found: Diagnosis) -> bool:
    rest = found.log.sources.keys() - {"step", "reward"}
    return found.learns is False and len(rest) < _FEW and not found.ranked


def _parts(found: Diagnosis) -> Iterator[str]:
    """Yield how the parts of a reward of several move, by their own names."""
    parts = found.log.parts.iloc[:, :_ALSO]
    trends = {name: trend(parts[name].dropna().to_numpy(dtype=np.float64)) for name in parts}
    moved = {name: of for name, of in trends.items() if of}
    if len(moved) > 1 and not (found.learns and all(of.rises for of in moved.values())):
        said = ", ".join(f"{name} {of.first:.3g} to {of.last:.3g}" for name, of in moved.items())
        yield from wrapped(f"Its parts: {said}.", "")


def _screen(found: Diagnosis, line: Callable[[str, str], Iterable[str]]) -> Iterator[str]:
    """Yield the answer. line: what makes lines of what is said aside."""
    ranked = found.ranked
    if found.stands_out:
        yield from _in_full(1, ranked[0])
        ranked = ranked[1:]
    else:
        yield from wrapped(verdict_text(found), "")
        if not ranked and not _too_few(found) and (good := in_order(found)):
            yield "Within bounds:"
            yield from (text for each in good for text in line(each.shown.sentence, "  "))
    if ranked:
        yield "Also:" if found.stands_out else "Weak signs:"
    for each in ranked[:_ALSO]:
        yield from line(f"{each.slug} ({chance(each.probability)}): {each.reason}", "  ")
    if though := not_ranked(found)[_THOUGH]:
        yield from wrapped(f"{_THOUGH} (-v): {', '.join(f.check.name for f in though)}.", "")
        yield from _cut(though[0].shown.sentence, "  ")
    yield from _noted(found)
    yield from _asked(found)
    yield "-v shows which findings follow from others, and what could not be checked."


def _noted(found: Diagnosis) -> Iterable[str]:
    return (line for note in found.notes for line in wrapped(f"Note: {note}", ""))


def _asked(found: Diagnosis) -> Iterator[str]:
    """Yield what no log shows, and what this one could."""
    if found.unseen:
        yield from wrapped(f"{_HIDDEN}: {', '.join(found.unseen)}.", "")
    elif found.learns:
        yield _NEVER
    if found.learns is not True and (names := to_log(found.findings, found.log)):
        yield from wrapped(f"Log next time: {', '.join(names)}.", "")


def _in_full(place: int, each: Ranked) -> Iterator[str]:
    yield f"{place}. {each.slug}, {chance(each.probability)} likely"
    yield from wrapped(f"{each.reason.rstrip('.')} ({each.rows}).", "   ")
    yield from wrapped(f"Not this if {each.refuted_by}", "   ")
    if each.change:
        yield from wrapped(f"Change: {each.change}", "   ")
    cost = f" ({each.cost})" if each.cost else ""
    yield from wrapped(f"Next: {each.next}{cost}", "   ")


def in_order(found: Diagnosis, most: int = 8) -> list[Finding]:
    """Return the first check that passed of each cause, but for causes that a log may hide all the same."""
    spoken = {f.check.slug for f in found.findings if f.status == "found"}
    fine: dict[str, Finding] = {}
    for each in (f for f in found.findings if f.status == "fine"):
        slug = each.check.slug
        if slug not in spoken and (each.check.clears or not load_hypothesis(slug).unseen):
            fine.setdefault(slug, each)
    return list(fine.values())[:most]


def not_ranked(found: Diagnosis) -> dict[str, list[Finding]]:
    """Return what was found and speaks for no cause, by the reason why."""
    ranked = {each.slug for each in found.ranked}
    own = (f for f in found.findings if f.status == "found" and not f.explained_by)
    follow = [f for f in found.findings if f.explained_by]
    return {_THOUGH: [f for f in own if f.check.slug not in ranked], "Follows from these": follow}


def _all(found: Diagnosis, limit: int) -> Iterator[str]:
    if not found.stands_out:
        yield from wrapped(verdict_text(found), "")
    for place, each in enumerate(found.ranked[: limit or None], start=1):
        yield from _in_full(place, each)
    if rest := [each.slug for each in found.ranked[limit:] if limit]:
        yield from wrapped(f"And then: {', '.join(rest)}.", "")
    fine = [f for f in found.findings if f.status == "fine"]
    for title, of in {**not_ranked(found), "Within bounds": fine}.items():
        if of:
            yield from ("", f"{title}:")
        for f in of:
            root = f" (from {f.explained_by})" if f.explained_by else ""
            yield from wrapped(f"{f.check.name}{root}: {f.shown.sentence}", "  ")
    if unchecked := [f for f in found.findings if f.status == "unchecked"]:
        yield from ("", "Could not be checked, and what to log for it:")
        width = max(len(f.check.name) for f in unchecked) + 2
        yield from (f"  {f.check.name:<{width}}{', '.join(f.missing)}" for f in unchecked)
    yield ""
    if given := settings_of(found.log):
        said = ", ".join(f"{name} {value}" for name, value in given.items())
        yield from wrapped(f"Settings that were read: {said}.", "")
    yield from _noted(found)
    clock = found.timing
    if clock.hours is not None:
        yield f"One run of this length: {clock.hours:.2g} {clock.unit}, by {clock.source}."
    yield from _asked(found)


def wrapped(text: str, indent: str, further: str = "") -> Iterable[str]:
    """Return the text as lines that begin with `indent`, all but the first `further` in, as wide as the terminal."""
    below = indent + further
    return textwrap.wrap(
        text, _width(), initial_indent=indent, subsequent_indent=below, break_on_hyphens=False
    )


def _cut(text: str, indent: str) -> Iterable[str]:
    """Return the text as one line, none of no text."""
    return [indent + textwrap.shorten(text, _width() - len(indent), placeholder=" …")] * bool(text)


def _width() -> int:
    least, usual, most = _WIDTHS
    return min(max(shutil.get_terminal_size((usual, _LINES)).columns, least), most)


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    clock = found.timing
    return {
        "place": found.log.place,
        "kind": found.log.kind,
        "rows": len(found.log.steps),
        "completions": len(found.log.completions),
        "sources": dict(found.log.sources),
        "settings": settings_of(found.log),
        "ends": found.log.ends,
        "unknown": list(found.log.unknown),
        "learns": found.learns,
        "reward": [asdict(mean) for mean in found.ends or ()],
        "stands_out": found.stands_out,
        "one_run": {
            "steps": clock.steps,
            "seconds_per_step": clock.seconds,
            "hours": clock.hours,
            "unit": clock.unit,
            "source": clock.source,
        },
        "ranked": [
            {
                "hypothesis": each.slug,
                "claim": load_hypothesis(each.slug).claim,
                "probability": round(each.probability, 3),
                "strength": _WORDS[each.strength],
                "reason": each.reason,
                "rows": each.rows,
                "checks": list(each.checks),
                "refuted_by": each.refuted_by,
                "change": each.change,
                "next": each.next,
                "cost": each.cost,
            }
            for each in found.ranked
        ],
        "checks": [_check(each) for each in found.findings],
        "unseen": list(found.unseen),
        "to_log": list(to_log(found.findings, found.log)),
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
