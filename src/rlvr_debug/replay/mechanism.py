"""What the check of a case says of a hypothesis: is its mechanism there?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_debug.replay.finding import DEVIATES, FAILED, NONE, NOT_SEEN
from rlvr_debug.replay.variants import claims, consequences_for, is_near, segments_for


@dataclass(frozen=True)
class Mechanism:
    """present: None where that cannot be told. text: the observations that say so, as sentences; empty for none."""

    present: bool | None
    text: str


def mechanism_of(slug: str, answer: Mapping[str, Any]) -> Mechanism:
    """Return what the case's check says of the hypothesis' mechanism.

    It is present where a consequence of it is out of its bound, or a segment deviates in a way that it claims: by a
    variant or, where none gives the deviation, in whatever way. What is only near to it neither shows nor rules it out.
    It is absent where all were seen and none deviates so.
    """
    segments = {each["segment"]: each for each in answer.get("segments", ())}
    measured = {each["name"]: each for each in answer.get("consequences", ())}
    own = segments_for(slug)
    said = [_observed(slug, segments.get(name), name) for name in own]
    for found in (measured[name] for name in consequences_for(slug) if name in measured):
        values = ", ".join(f"{key} {value:.3g}" for key, value in found["measured"].items())
        how = "within its bound" if found["passed"] else "out of its bound"
        said.append((not found["passed"], f"{found['name']} {how}: {values}"))
    if not said:
        return Mechanism(None, "")
    all_present = [present for present, _ in said]
    present = True if True in all_present else None if None in all_present else False
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
    if claimed := [each for each in by if not is_near(name, each, slug)]:
        return True, f"{name} deviates as by '{claimed[0]}'"
    if by:
        return None, f"{name} deviates as by '{by[0]}', which is not what the hypothesis claims"
    if segment["names"]:
        other = segment["names"][0]["name"]
        return False, f"{name} deviates as by '{other}', which is of another hypothesis"
    what = f"{name} deviates in a way that nothing known gives: {segment['note']}"
    return (True if claims(slug, name) else None), what
