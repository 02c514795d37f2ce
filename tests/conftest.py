"""Settings and fixtures for every test file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# the same examples in each run, and no failure because the machine is busy
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real rows beside the checkout; tests that need it skip where it is missing."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside the checkout: no real rows to test on")
    return path
