"""`rlvr-debug check` on scripts that its author did not write, and how they are counted."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.check import faults, run
from benchmarks.check.blind import RESULTS, checked_blind, read_labels
from benchmarks.check.faults import FAULTS, SEGMENTS
from benchmarks.check.faults.fault import Fault
from benchmarks.check.forks import Forks
from rlvr_debug.causes import variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_yaml
from rlvr_debug.venvs import build_venv

SCRIPT = ROOT / "benchmarks" / "check" / "script.py"
# one of each kind, and those that a first version got wrong; all of them: python -m benchmarks.check.run
SETTINGS = (
    *("tools", "dora", "ia3", "lora-all-layers", "engine", "pad-is-eos", "attention-dropout"),
    *("generation-kwargs", "reference-synced", "own-optimizer", "resumed"),
    *("iterations-2+loss-vespo", "accumulation-4+entropy-bonus", "groups-of-2"),
    *("steps-per-generation-1", "another-end+truncated-masked", "environments-asking"),
)
IN_BF16 = [(name, "--precision", "bf16") for name in ("", "kl", "lora-dropout")]
PLANTED = (
    *("same-batch-every-step", "prompt-without-tools", "the-end-is-not-the-end"),
    *("prefix-cache-not-reset", "one-seed-for-all-samples", "text-round-trip", "eos-not-trained"),
    *("tool-output-scored", "advantages-discounted", "reference-of-another-model"),
    *("importance-weights-upside-down", "advantages-shuffled-apart", "kl-subtracted"),
    *("backward-twice", "weight-decay-lost", "plain-descent-for-adam", "prompt-trained"),
    *("one-environment-for-all-rows", "positions-begin-again"),
)
# names that none of the library's own faults has
NAMED = {
    "groups-of-two-prompts": "groups begin in the middle of others",
    "kl-twice-as-strong": "another weight of the KL term",
    "mean-of-the-batch": "another baseline than the group's mean",
    "old-logps-of-other-rows": "those of other rows",
    "output-layer-not-sent": "the output layer is that of the beginning",
}
RELEASES = ("trl-1.0.0", "trl-0.29.0")


def checked(forks: Forks, folder: Path, *words: str) -> Mapping[str, Any]:
    """Return what the check says of the corpus's script with these words."""
    status, said = forks.run([str(SCRIPT), *words], folder, 200)
    assert (folder / "answer.json").is_file(), (status, said[-2000:])
    answer: Mapping[str, Any] = read_json(folder / "answer.json")
    return answer


@pytest.mark.heavy
@pytest.mark.parametrize("words", [*((name,) for name in SETTINGS), *IN_BF16], ids=" ".join)
def test_an_unusual_healthy_script_is_not_flagged(
    forks: Forks, words: tuple[str, ...], tmp_path: Path
) -> None:
    answer = checked(forks, tmp_path, "--setting", *words)
    assert answer["first"] is None, answer["answer"]


@pytest.mark.heavy
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_of_a_script_is_found_where_it_is(forks: Forks, fault: str, tmp_path: Path) -> None:
    answer = checked(forks, tmp_path, "--fault", fault)
    assert answer["first"] in FAULTS[fault].segments, answer["answer"]


@pytest.mark.heavy
@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_of_a_script_is_named(forks: Forks, fault: str, tmp_path: Path) -> None:
    answer = checked(forks, tmp_path, "--fault", fault)
    assert NAMED[fault] in {name["name"] for name in answer["names"]}, answer["answer"]


@pytest.mark.releases
@pytest.mark.parametrize("environment", RELEASES)
def test_an_older_release_is_recorded_in_every_segment(environment: str, tmp_path: Path) -> None:
    try:
        python = build_venv(environment)
    except InputError as error:
        pytest.skip(str(error))
    healthy, again, faulty = (tmp_path / name for name in ("healthy", "again", "faulty"))
    for folder in (healthy, again, faulty):
        folder.mkdir()
    with Forks(str(python)) as old:
        answer = checked(old, healthy, "--setting", "accumulation-1")
        twice = checked(old, again, "--setting", "iterations-2+kl")
        broken = checked(old, faulty, "--fault", "advantages-of-others")
    assert answer["trainer"] == environment.replace("-", " ")
    assert answer["first"] is None, answer["answer"]
    # transformers 5.2 and 5.4, which are pinned with them, tell accelerate of the accumulation, which divides by it again
    assert twice["first"] == "gradient"
    assert twice["names"][0]["name"] == "divided by the number of micro-batches"
    assert "not seen" not in {each["status"] for each in answer["segments"]}
    assert broken["first"] in FAULTS["advantages-of-others"].segments


# those that were wrong when the check ran on them first; all of them: python -m benchmarks.check.blind
MENDED = [
    *("a/fault_03", "a/fault_04", "a/healthy_05", "a/healthy_06"),
    *("b/fault_07", "b/fault_12", "b/fault_14", "b/healthy_04", "b/healthy_09"),
    *("c/fault_03", "c/fault_07", "c/fault_12", "c/fault_18", "c/healthy_01"),
    *("d/fault_05", "d/fault_06", "d/fault_12", "d/fault_13", "d/healthy_02"),
    *("e/fault_03", "e/fault_04", "e/fault_11", "e/healthy_03"),
    *("f/fault_13", "f/healthy_05", "g/fault_13", "r/fault_04", "t/fault_11"),
    *("u/fault_16", "w/fault_13", "w/fault_18", "x/fault_12", "x/fault_15"),
    *("y/fault_01", "y/fault_07", "y/fault_10", "y/healthy_03", "z/fault_13"),
    *("ab/fault_05", "ab/fault_07", "ac/healthy_03", "ad/fault_17", "p/fault_16"),
    *("v/fault_08", "v/healthy_04", "v/healthy_05", "v/healthy_06", "v/healthy_08"),
]


@pytest.mark.heavy
@pytest.mark.parametrize("script", MENDED)
def test_a_script_of_an_outsider_that_was_answered_wrongly_is_answered_rightly(
    forks: Forks, script: str
) -> None:
    [label] = [label for label in read_labels() if label.script == script]
    assert not label.is_right(label.first_run)
    assert label.is_right(checked_blind(label, forks))


# --- how the measuring counts


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
    planted = Fault("f", "", lambda case: case, ("loss", "gradient"), "own", causes=("kl-penalty",))
    names = [{"name": "a name", "cause": cause}] if first else []
    seen = {"segment": first or "loss", "status": "agrees", "share": 0.5, "names": names}
    unseen = {"segment": "clip", "status": "not seen", "share": 0.0, "names": []}
    report: dict[str, object] = {"first": first, "segments": [seen, unseen]}
    found = run._outcome("f", planted, report, 3, 1.0, "")
    assert (found.placed, found.named, found.not_seen) == (placed, named, "clip")


def test_every_variant_and_entry_of_the_table_is_planted_and_every_segment_has_a_fault() -> None:
    assert {f.name for f in FAULTS.values() if f.origin == "library"} == set(variant_names())
    assert [*FAULTS] == [*read_yaml(Path(faults.__file__).with_name("faults.yaml"))]
    assert {segment for fault in FAULTS.values() for segment in fault.segments} == set(SEGMENTS)


def test_the_table_of_outsiders_scripts_has_all_of_them() -> None:
    with RESULTS.open(encoding="utf-8", newline="") as handle:
        rows = [*csv.DictReader(handle)]
    counted = [(row["script"], int(row["right"])) for row in rows]
    pairs = zip(read_labels(), rows, strict=True)
    assert counted == [(label.script, label.is_right(row["said"])) for label, row in pairs]
