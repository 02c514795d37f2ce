"""Every check, and all of them on one log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr_debug.diagnose.checks import optimizer, rewards, sampling
from rlvr_debug.diagnose.checks.base import LARGE, Check, Finding, Shown
from rlvr_debug.diagnose.logs import Log, logged_as

__all__ = ["CHECKS", "Check", "Finding", "Shown", "run_checks"]

# in this order findings of equal strength are ranked: what can be told from few rows, first
CHECKS: tuple[Check, ...] = (*optimizer.CHECKS, *sampling.CHECKS, *rewards.CHECKS)


def run_checks(log: Log) -> list[Finding]:
    """Every check's finding, those that follow from another one marked so."""
    found = [_one(check, log) for check in CHECKS]
    causes = _causes([each.check for each in found if each.shown and each.shown.strength >= LARGE])
    return [
        replace(each, explained_by=causes.get(each.check.name, ""))
        if each.status == "found"
        else each
        for each in found
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


def _one(check: Check, log: Log) -> Finding:
    if not any(log.has(*names) for names in check.needs):
        wanted = tuple(logged_as(name) for name in check.needs[0] if not log.has(name))
        return Finding(check, "unchecked", missing=wanted)
    shown = check.run(log)
    if shown is None:
        return Finding(check, "unchecked", missing=("it is logged, but too little of it",))
    return Finding(check, "found" if shown.strength else "fine", shown)
