"""What the check of a case says of a hypothesis, read from the answer's JSON: is its mechanism there?

It stands apart, so that a job that judges depends on no code that checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_debug.replay.finding import DEVIATES, FAILED, NONE, NOT_SEEN
from rlvr_debug.replay.variants import causes_of, consequences_for, segments_for


@dataclass(frozen=True)
class Mechanism:
    """present: None where that cannot be told. text: the observations that say so, as sentences; empty for none."""

    present: bool | None
    text: str


def mechanism_of(slug: str, answer: Mapping[str, Any]) -> Mechanism:
    """Return what the case's check says of the hypothesis' mechanism.

    It is present where a consequence of the hypothesis is out of its bound, or one of its segments deviates and speaks
    for it: by a variant of the hypothesis or, where no known variant gives the deviation, as the nearest cause. It is
    absent where all of these were seen and none does.
    """
    segments = {each["segment"]: each for each in answer.get("segments", ())}
    measured = {each["name"]: each for each in answer.get("consequences", ())}
    own = segments_for(slug)
    said = [_observed(slug, segments.get(name), name) for name in own]
    said += [_consequence(measured[name]) for name in consequences_for(slug) if name in measured]
    if not said:
        return Mechanism(None, "")
    found = [present for present, _ in said]
    present = True if True in found else None if None in found else False
    # what agrees needs no words beside what does not
    told = [text for each, text in said if each is present or each is None]
    return Mechanism(present, "; ".join(told))


def _observed(slug: str, segment: Mapping[str, Any] | None, name: str) -> tuple[bool | None, str]:
    if segment is None:
        return None, f"{name} was not checked"
    if segment["status"] == NOT_SEEN:
        return None, f"{name} was not seen: {segment['note']}"
    if segment["status"] == FAILED:
        return None, f"{name} {FAILED}: {segment['note']}"
    if segment["status"] != DEVIATES:
        share = segment["share"]
        how = f"agrees, at {share:.0%} of its tolerance" if share else "agrees"
        return (
            False,
            f"{name} {'is not in the recorded steps' if segment['status'] == NONE else how}",
        )
    by = [each["name"] for each in segment["names"] if each["cause"] == slug]
    if by:
        return True, f"{name} deviates as by '{by[0]}'"
    if segment["names"]:
        other = segment["names"][0]["name"]
        return False, f"{name} deviates as by '{other}', which is of another hypothesis"
    what = f"{name} deviates in a way that nothing known gives: {segment['note']}"
    return (True if causes_of(name)[:1] == (slug,) else None), what


def _consequence(found: Mapping[str, Any]) -> tuple[bool, str]:
    values = ", ".join(f"{key} {value:.3g}" for key, value in found["measured"].items())
    how = "within its bound" if found["passed"] else "out of its bound"
    return not found["passed"], f"{found['name']} {how}: {values}"
