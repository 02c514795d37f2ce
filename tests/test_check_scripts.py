"""The scripts that `rlvr-debug check` is measured with: what they cover, and how the measuring counts."""

from __future__ import annotations

import pytest

pytest.importorskip("trl", reason="trl is not installed: no trainer to plant faults in")

from benchmarks.check import run
from benchmarks.check.faults import FAULTS, SEGMENTS
from benchmarks.check.faults.fault import Fault
from rlvr_debug.causes import variant_names


def test_every_variant_of_the_library_is_planted_in_trl() -> None:
    assert {f.name for f in FAULTS.values() if f.origin == "library"} == set(variant_names())


def test_every_segment_has_a_fault() -> None:
    assert {segment for fault in FAULTS.values() for segment in fault.segments} == set(SEGMENTS)


def _fault(*segments: str) -> Fault:
    causes = ("kl-penalty",)
    return Fault("f", "what", lambda case: case, segments, "own", causes=causes)


def _report(first: str | None, cause: str = "kl-penalty") -> dict[str, object]:
    names = [{"name": "a name", "cause": cause}] if first else []
    segment = {"segment": first or "loss", "status": "agrees", "share": 0.5, "names": names}
    unseen = {"segment": "clip", "status": "not seen", "share": 0.0, "names": []}
    return {"first": first, "segments": [segment, unseen]}


@pytest.mark.parametrize(
    ("first", "cause", "placed", "named"),
    [
        ("loss", "kl-penalty", 1, "1"),
        ("gradient", "kl-penalty", 1, "1"),
        ("loss", "reward-signal", 1, "0"),
        ("rewards", "kl-penalty", 0, "1"),
        (None, "kl-penalty", 0, "0"),
    ],
)
def test_a_fault_is_placed_in_one_of_its_segments_and_named_by_one_of_its_causes(
    first: str | None, cause: str, placed: int, named: str
) -> None:
    report = _report(first, cause)
    found = run._outcome("f", _fault("loss", "gradient"), report, 3, 1.0, "")
    assert (found.placed, found.named, found.not_seen) == (placed, named, "clip")
