"""The scripts that `rlvr-debug check` is measured with: what they cover, and how the measuring counts."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("trl", reason="trl is not installed: no trainer to plant faults in")

from benchmarks.check import cost, run, seeds
from benchmarks.check.faults import FAULTS, SEGMENTS
from benchmarks.check.faults.fault import Fault, faulty
from rlvr_debug.causes import variant_names


def test_every_variant_of_the_library_is_planted_in_trl() -> None:
    assert {f.name for f in FAULTS.values() if f.origin == "library"} == set(variant_names())


def test_every_segment_has_a_fault() -> None:
    assert {segment for fault in FAULTS.values() for segment in fault.segments} == set(SEGMENTS)


@pytest.mark.parametrize(
    ("segments", "known", "said"),
    [
        (("grups",), {}, "grups"),
        (("loss", "gradient"), {}, "a reason"),
        (("loss",), {"why": "one place"}, "a reason"),
    ],
)
def test_a_fault_with_a_bad_entry_is_refused(
    segments: tuple[str, ...], known: dict[str, str], said: str
) -> None:
    def some_fault(case: object) -> object:
        """Something is wrong."""
        return case

    with pytest.raises(ValueError, match=said):
        faulty(*segments, **known)(some_fault)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("report", "status", "placed"),
    [(_report(None), 0, 1), (_report("loss"), 3, 0), ({}, 2, 0)],
)
def test_a_healthy_script_counts_where_it_was_checked_and_nothing_deviates(
    report: dict[str, object], status: int, placed: int
) -> None:
    assert run._outcome("s", None, report, status, 1.0, "").placed == placed


def test_the_most_that_a_segment_used_is_kept_with_its_seed() -> None:
    found = None
    for seed, share in enumerate((0.1, 0.4, 0.2)):
        found = seeds.most(found, seeds.Used("clip", share, 1, seed, "kl"))
    assert found == seeds.Used("clip", 0.4, 3, 1, "kl")


def test_what_a_program_costs_has_the_memory_of_the_programs_that_it_starts() -> None:
    inner = "x = b'x' * (200 << 20)"
    outer = f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{inner}"])'
    found = cost._run([sys.executable, "-c", outer], threads=1)
    assert found.gib > 0.2
    assert found.cpu > 0
    with pytest.raises(RuntimeError, match="ended with status 5"):
        cost._run([sys.executable, "-c", "raise SystemExit(5)"], threads=1)
