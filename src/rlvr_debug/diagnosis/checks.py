"""Every cause's checks on one log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlvr_debug.causes.check import LARGE, Check, Shown, log_checks
from rlvr_debug.logs.log import Log, logged_as
from rlvr_debug.logs.names import framework_of, names_of, quantities

__all__ = ["Finding", "Status", "run_checks"]

Status = Literal["found", "fine", "unchecked"]
_NOTHING = Shown(0, {}, "", 0.0)


@dataclass(frozen=True)
class Finding:
    """One check on one log. missing: what to log, where it could not be checked.

    explained_by: a check whose finding this one follows from; "" for a finding that counts.
    """

    check: Check
    status: Status
    shown: Shown = _NOTHING
    missing: tuple[str, ...] = ()
    explained_by: str = ""


def run_checks(log: Log) -> list[Finding]:
    """Every check's finding, those that follow from another one marked so."""
    found = [_one(check, log) for check in log_checks()]
    causes = _causes([each.check for each in found if each.shown.strength >= LARGE])
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


def _wanted(check: Check, framework: str) -> tuple[str, ...]:
    """Return what is to be logged for a check: the first alternative that the framework has names for."""
    named = (
        names
        for names in check.needs
        if all(name in quantities() and framework in names_of(name) for name in names)
    )
    return next(named, check.needs[0])


def _one(check: Check, log: Log) -> Finding:
    if not any(log.has(*names) for names in check.needs):
        framework = framework_of(log.sources)
        wanted = tuple(logged_as(n, framework) for n in _wanted(check, framework) if not log.has(n))
        return Finding(check, "unchecked", missing=wanted)
    shown = check.on(log)
    if shown is None:
        return Finding(check, "unchecked", missing=("it is logged, but too little of it",))
    return Finding(check, "found" if shown.strength else "fine", shown)
