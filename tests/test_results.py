"""The committed results: every one of them is made by one command, which says what made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.results import KEPT, _commit, keep
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text


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
    def git(*words: str) -> None:
        author = ("-c", "user.name=someone", "-c", "user.email=some@one")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("results/metrics.json", "params.yaml"):
        write_text(tmp_path / name, "1")
    git("add", "-A")
    git("commit", "-qm", "all")
    write_text(tmp_path / "results" / "metrics.json", "2")
    assert len(_commit(tmp_path)) >= 7
    write_text(tmp_path / "params.yaml", "2")
    with pytest.raises(InputError, match=r"params\.yaml: changed since the commit"):
        _commit(tmp_path)
