"""The suite itself: what a slow machine has no time for is skipped, and is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_setup
from tests.copies import dry


def test_a_test_that_would_begin_too_late_is_skipped_and_says_so() -> None:
    late: Any = SimpleNamespace(config=SimpleNamespace(getoption=lambda _: -1.0))
    with pytest.raises(pytest.skip.Exception, match=r"no time left: it would have begun after"):
        pytest_runtest_setup(late)


def test_make_install_installs_and_runs_nothing_else(copied: Path) -> None:
    assert "pip" not in dry("install", copied)
    for stamp in (copied / ".venv").glob(".t*-*"):
        stamp.unlink()
    installs = [line for line in dry("install", copied).splitlines() if not line.startswith("rm ")]
    assert installs == [
        """.venv/bin/python -m pip install -q "$(grep '^uv==' envs/test.txt)" || echo "uv cannot be installed: pip takes its place\"""",
        "PYTHONPATH=src .venv/bin/python scripts/install.py train",
        ".venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .",
        "PYTHONPATH=src .venv/bin/python scripts/install.py test",
    ]
