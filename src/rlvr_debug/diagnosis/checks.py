"""Every cause's checks on one log, and how likely each cause is: a logistic model over the findings (benchmarks/mistakes/score.py)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from rlvr_debug.causes.check import LARGE, Check, Reading, log_checks
from rlvr_debug.files import read_json
from rlvr_debug.logs.log import Log, logged_as
from rlvr_debug.logs.names import KNOWN, NAMES

WEIGHTS = Path(__file__).with_name("weights.json")
# a first cause below is more often wrong than right
STANDS_OUT = 0.5
_MOST_SYMPTOMS = 4
_NOTHING = Reading(0, {}, 0.0)


@dataclass(frozen=True)
class Finding:
    """One check on one log. missing: what to log for it. explained_by: a check whose finding this one follows from, "" for none."""

    check: Check
    status: Literal["found", "fine", "unchecked"]
    shown: Reading = _NOTHING
    missing: tuple[str, ...] = ()
    explained_by: str = ""


def run_checks(log: Log) -> list[Finding]:
    """Every check's finding, those that follow from another one marked so."""
    found = [_one(check, log) for check in log_checks()]
    causes = _causes([each.check for each in found if each.shown.strength >= LARGE])
    return [
        replace(f, explained_by=causes.get(f.check.name, "")) if f.status == "found" else f
        for f in found
    ]


def _causes(strong: Sequence[Check]) -> dict[str, str]:
    """By name of check: the first of these that explains it, itself or through others of these."""
    known = {check.name: check for check in strong}
    explained = {name for check in strong for name in check.explains}
    causes: dict[str, str] = {}
    for root in (check for check in strong if check.name not in explained):
        below = list(root.explains)
        while below:
            name = below.pop()
            if name not in causes:
                causes[name] = root.name
                below += known[name].explains if name in known else ()
    return causes


def _missing(check: Check, log: Log) -> tuple[str, ...]:
    """Return what is to be logged for a check: of the first alternative that the log's framework has names for."""
    of_parts = check.needs[0][0] == "parts" or check.name == "parts-conflict"
    if of_parts and log.parts.shape[1] == 1:
        return ("two reward functions or more: this run has one",)
    framework = log.framework
    named = {name for name, names in NAMES.items() if framework in names}
    wanted = next((names for names in check.needs if named.issuperset(names)), check.needs[0])
    missing = tuple(
        logged_as(name, framework)
        + (" with more decimals" if name in log.rounded else _setting(name, framework))
        for name in wanted
        if not log.has(name)
    )
    return missing or ("logged, but in too few rows, not from step 1 on, or always the same",)


def _setting(name: str, framework: str) -> str:
    """Return the setting with which TRL logs a quantity, in brackets, "" where it needs none."""
    known = KNOWN["with"] if framework == "trl" else {}
    return "".join(known.get(name.partition(".")[0], "").partition(" (")[1:])


def _one(check: Check, log: Log) -> Finding:
    shown = check.on(log) if any(log.has(*names) for names in check.needs) else None
    if shown is None:
        return Finding(check, "unchecked", missing=_missing(check, log))
    return Finding(check, "found" if shown.strength else "fine", shown)


def evidence_for(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Return by cause the findings that speak for it, the strongest first. One that follows from another speaks for nothing."""
    speaking = [f for f in findings if f.status == "found" and not f.explained_by]
    speaking.sort(key=lambda f: (-f.shown.strength, -f.shown.amount, f.check.order))
    by_slug: dict[str, list[Finding]] = {}
    for each in speaking:
        by_slug.setdefault(each.check.slug, []).append(each)
    return by_slug


def features(findings: Sequence[Finding], learns: bool | None) -> dict[str, dict[str, float]]:
    """Return by cause what the model reads of a log. learns: whether its reward rises."""
    evidence = evidence_for(findings)
    followers = [f.explained_by for f in findings]
    found = {}
    for place, (slug, own) in enumerate(evidence.items()):
        found[slug] = {
            f"cause {slug}": 1.0,
            "large": float(own[0].shown.strength >= LARGE),
            "clearest": float(place == 0),
            "only one": float(len(evidence) == 1),
            "a setting": float(any(f.check.of_settings for f in own)),
            "further findings": float(min(len(own) - 1, 2)),
            "symptoms": float(min(sum(followers.count(f.check.name) for f in own), _MOST_SYMPTOMS)),
            "reward rises": float(learns is True),
            "reward does not rise": float(learns is False),
        }
    return found


def likely_causes(
    findings: Sequence[Finding], learns: bool | None
) -> list[tuple[str, float, list[Finding]]]:
    """Return each cause that findings speak for with how likely it is the right one, and its findings, the strongest first."""
    read = features(findings, learns)
    return [(slug, _probability(read[slug]), own) for slug, own in evidence_for(findings).items()]


@cache
def _weights() -> Mapping[str, float]:
    found: Mapping[str, float] = read_json(WEIGHTS)
    return found


def _probability(of_one: Mapping[str, float]) -> float:
    weights = _weights()
    total = sum(weights.get(name, 0.0) * value for name, value in of_one.items())
    return 1 / (1 + math.exp(-total - weights["intercept"]))
