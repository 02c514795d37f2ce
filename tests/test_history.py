"""The experiments log, from a repository's own history."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.errors import InputError
from rlvr_debug.report.compare import Entry, history


def metrics(case: float, control: float | None = None, **verdicts: str) -> dict[str, Any]:
    arms = {"case": {"gain": case}} | ({"control": {"gain": control}} if control else {})
    told = {slug.replace("_", "-"): {"status": status} for slug, status in verdicts.items()}
    return {"arms": arms, "verdicts": told}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for command in ("init -q -b main", "config user.name some", "config user.email some@one"):
        git(tmp_path, *command.split())
    return tmp_path


def git(folder: Path, *words: str, day: int = 1) -> str:
    date = f"2026-01-{day:02}T12:00:00+00:00"
    env = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, day: int, subject: str, **files: Any) -> str:
    """Commit files by path, `/` written as two underscores; None removes one."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_name("metrics.json") if path.suffix == "" else path
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject, "--allow-empty", day=day)
    return git(folder, "rev-parse", "--short", "HEAD")


def told(entries: list[Entry]) -> list[tuple[str, str, str, float | None, float | None]]:
    return [(e.subject, e.study, e.experiment, e.case, e.control) for e in entries]


def test_each_result_of_any_study_is_an_entry_the_newest_first(repository: Path) -> None:
    found = metrics(0.0, 0.3, hidden_context="validated", kl_penalty="invalidated")
    first = commit(repository, 1, "default", results__x=found)
    commit(repository, 2, "prose", README="words")
    commit(
        repository,
        3,
        "two\twords",
        studies__full__results__x=metrics(0.1),
        results__releases__old__x=metrics(-0.1),
    )
    commit(repository, 4, "changed", results__x=metrics(0.2, 0.3))
    commit(repository, 5, "removed", studies__full__results__x=None)
    entries = history(repository)
    assert told(entries) == [
        ("changed", "default", "", 0.2, 0.3),
        *(("two\twords", study, "", case, None) for study, case in (("old", -0.1), ("full", 0.1))),
        ("default", "default", "", 0.0, 0.3),
    ]
    assert entries[-1].verdicts == {"hidden-context": "validated", "kl-penalty": "invalidated"}
    assert (entries[-1].commit, entries[-1].date[:10]) == (first, "2026-01-01")


@pytest.mark.parametrize("content", ["no json", "[]", "{}", '{"verdicts": {"a": 1}}', '"x"'])
def test_another_file_of_that_name_is_none(content: str, repository: Path) -> None:
    commit(repository, 1, "other", site__x=content, results__x=metrics(0.1))
    assert told(history(repository)) == [("other", "default", "", 0.1, None)]


def test_dvc_s_experiments_stand_among_them_by_their_names(repository: Path) -> None:
    commit(repository, 1, "default", results__x=metrics(0.0))
    commit(repository, 3, "exp", results__x=metrics(0.5))
    git(repository, "update-ref", "refs/exps/ab/cdef/bold-name", "HEAD")
    git(repository, "update-ref", "refs/exps/exec/EXEC_BRANCH", "HEAD")
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    commit(repository, 2, "later", results__x=metrics(0.2))
    assert told(history(repository)) == [
        ("exp", "default", "bold-name", 0.5, None),
        ("later", "default", "", 0.2, None),
        ("default", "default", "", 0.0, None),
    ]


def test_without_git_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"git log: .*not a git repository"):
        history(tmp_path)
