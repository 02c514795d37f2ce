"""The suite itself: what a slow machine has no time for is skipped, and is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.copies import dry
from tests.shared import ran

SUITE = """
def test_one(): pass

def test_another(): pass
"""


def test_a_test_that_would_begin_too_late_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SUITE, encoding="utf-8")
    conftest = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_bytes(conftest.read_bytes())
    command = [sys.executable, "-m", "pytest", "-rs", "-v", "--seconds", "-1", str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = ran(command, env=clean, check=True)
    assert "2 skipped" in done.stdout.splitlines()[-1]
    assert "no time left: it would have begun after more than" in done.stdout


def test_make_install_installs_and_runs_nothing_else(copied: Path) -> None:
    assert "pip" not in dry("install", copied)
    for stamp in (copied / ".venv").glob(".t*-*"):
        stamp.unlink()
    installs = [line for line in dry("install", copied).splitlines() if not line.startswith("rm ")]
    begin = ".venv/bin/python -m pip install -q "
    assert [line.removeprefix(begin) for line in installs] == [
        "-r envs/train.txt",
        "--no-deps --no-build-isolation -e .",
        "-r envs/test.txt",
    ]
