"""The committed results: one command makes them and says what made them, and a run is held to them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.results import KEPT, _commit, keep
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_json, write_text
from rlvr_debug.report import committed
from rlvr_debug.report.committed import beside_committed


def git(root: Path, *words: str) -> None:
    author = ("-c", "user.name=someone", "-c", "user.email=some@one")
    subprocess.run(["git", *author, *words], cwd=root, capture_output=True, check=True)


def commit(folder: Path) -> None:
    """Commit all that is in the folder."""
    git(folder, "add", "-A", ".")
    git(folder, "commit", "-qm", "all")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return the results of a made-up study."""
    for name in KEPT:
        write_text(tmp_path / "results" / (name if "." in name else f"{name}/one"), name)
    write_text(tmp_path / "results" / "runs" / "weights", "are not kept")
    return tmp_path / "results"


def test_what_a_reader_opens_replaces_what_was_there(results: Path, tmp_path: Path) -> None:
    place = tmp_path / "kept" / "mine"
    write_text(place / "probes.json", "of an older version")
    keep(results, place, "# Mine\n")
    assert sorted(path.name for path in place.iterdir()) == sorted([*KEPT, "README.md"])
    assert (place / "tables" / "one").read_text() == "tables"
    assert [path.name for path in place.parent.iterdir()] == ["mine"]


def test_a_report_over_a_megabyte_or_half_a_study_leaves_what_is_there(
    results: Path, tmp_path: Path
) -> None:
    place = tmp_path / "kept" / "mine"
    write_text(place / "README.md", "older")
    report = results / "report.html"
    report.write_bytes(bytes(1_000_001))
    with pytest.raises(InputError, match="1000001 bytes, expected at most 1000000"):
        keep(results, place, "newer")
    report.unlink()
    with pytest.raises(InputError, match=r"report\.html: not there, expected the results"):
        keep(results, place, "newer")
    assert (place / "README.md").read_text() == "older"


def test_results_name_a_commit_that_has_all_that_made_them(tmp_path: Path) -> None:
    for name in ("results/metrics.json", "params.yaml"):
        write_text(tmp_path / name, "1")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    write_text(tmp_path / "results" / "metrics.json", "2")
    assert len(_commit(tmp_path)) >= 7
    write_text(tmp_path / "params.yaml", "2")
    with pytest.raises(InputError, match=r"params\.yaml: changed since the commit"):
        _commit(tmp_path)


# --- what the end of a run says beside them


VERDICTS = "hypothesis,status\nkl-penalty,{}\nmulti-step,pending\n"
GAINS: dict[str, Any] = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}


def write(
    root: Path, status: str = "invalidated", params: str = "seeds: [0]\n", **gains: float
) -> None:
    arms = {name: {"gain": gain, "slope": 9 * gain} for name, gain in gains.items()}
    write_json(root / "results" / "metrics.json", {"arms": arms})
    write_text(root / "results" / "tables" / "verdicts.csv", VERDICTS.format(status))
    write_text(root / "params.yaml", params)
    write_json(root / "results" / "study.json", {"params": params})


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write(tmp_path, **GAINS)
    git(tmp_path, "init", "-q")
    assert beside_committed(tmp_path) == []  # nothing is committed
    commit(tmp_path)
    return tmp_path


def test_the_committed_figures_are_said_to_be_those(study: Path) -> None:
    assert beside_committed(study) == ["All 8 figures and all verdicts are the committed ones."]


def test_of_figures_that_differ_the_largest_changes_of_gains_are_told(study: Path) -> None:
    write(study, a=0.11, b=0.2, c=0.1, d=0.45)
    [said, *told] = beside_committed(study)
    assert said.startswith("6 of 8 figures and 0 of 2 verdicts differ from the committed ones")
    assert told == [
        "  arms.c.gain: 0.3 to 0.1 (-0.2)",
        "  arms.d.gain: 0.4 to 0.45 (+0.05)",
        "  arms.a.gain: 0.1 to 0.11 (+0.01)",
    ]


def test_another_verdict_is_told_and_another_study_is_not_compared(study: Path) -> None:
    write(study, "validated", **GAINS)
    [said, verdict] = beside_committed(study)
    assert said.startswith("0 of 8 figures and 1 of 2 verdicts differ")
    assert verdict == "  kl-penalty: invalidated to validated"
    write(study, "validated", "seeds: [0, 1]\n", a=0.9)
    assert beside_committed(study) == []


def test_an_overlay_s_study_is_held_to_what_is_committed_below_results(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed, "ROOT", study)
    own, kept = study / "studies" / "mine", study / "results" / "mine"
    write(own, a=0.5)
    for name in ("study.json", "tables/verdicts.csv"):
        write_text(kept / name, (own / "results" / name).read_text())
    write_json(kept / "metrics.json", {"arms": {"a": {"gain": 0.1, "slope": 4.5}}})
    commit(study / "results")
    [said, told] = beside_committed(own, overlaid=True)
    assert said.startswith("1 of 2 figures and 0 of 2 verdicts differ")
    assert told == "  arms.a.gain: 0.1 to 0.5 (+0.4)"
