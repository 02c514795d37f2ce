"""Environments beside the main one: built once, again when their pins change, and never half."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlvr_debug.config import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.venvs import build_venv, venv_names, venvs_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "train.txt").write_text("torch\n")
    (tmp_path / "envs" / "mine.txt").write_text("# nothing\n")
    (tmp_path / "src" / "rlvr_debug").mkdir(parents=True)
    (tmp_path / "src" / "rlvr_debug" / "__init__.py").write_text("")
    return tmp_path


@pytest.mark.slow
def test_an_environment_is_built_once_and_again_when_its_pins_change(project: Path) -> None:
    python = build_venv("mine", project)
    code = "import rlvr_debug, sys; print(rlvr_debug.__file__)"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env={})
    assert Path(said.stdout.strip()).parent == project / "src" / "rlvr_debug"
    mark = python.parent / "mark"
    mark.write_text("")
    assert build_venv("mine", project) == python
    assert mark.exists()
    (project / "envs" / "mine.txt").write_text("# nothing else\n")
    build_venv("mine", project)
    assert not mark.exists()


@pytest.mark.slow
def test_what_cannot_be_installed_is_one_line_and_is_not_taken_for_built(project: Path) -> None:
    (project / "envs" / "mine.txt").write_text("./no-such-folder\n")
    with pytest.raises(InputError, match=r"^envs/mine.txt: it could not be installed: .*ERROR"):
        build_venv("mine", project)
    assert not (project / ".envs" / "mine" / "ready").exists()


def test_an_unknown_environment_is_an_error_that_names_those_there_are(project: Path) -> None:
    with pytest.raises(InputError, match=r"envs/yours.txt: no such file, expected one of mine"):
        build_venv("yours", project)


def test_only_a_trainer_with_packages_of_its_own_needs_one() -> None:
    assert venvs_of("own", {}) == venvs_of("command", {"program": ["python"]}) == []
    assert venvs_of("trl", {}) == ["trl"]
    assert venvs_of("command", {"environment": "mine"}) == ["mine"]
    assert {"trl", "verifiers-0.1.3", "verifiers-0.1.6.post0"} <= set(venv_names())


@pytest.mark.parametrize("name", venv_names())
def test_every_environment_is_pinned_exactly_and_names_no_index(name: str) -> None:
    lines = (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines)
    assert not any(word in line for line in lines for word in ("://", "--"))
