"""Plain Snakemake, without make and without anything of the tests, in an environment that holds envs/train.txt and the package."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from rlvr_debug.blocks import told
from rlvr_debug.errors import InputError
from rlvr_debug.study.params import load_params
from rlvr_debug.venvs import build_venv
from tests.copies import project
from tests.test_workflow import MINI, ROOT, copy, finished_mini

PIP = ("-m", "pip", "--disable-pip-version-check")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return project(tmp_path / "project")


def plain(root: Path, environment: Path, *command: str) -> str:
    """Run it as in that environment, activated, with nothing of ours set; all that it says."""
    ours = ("PYTHON", "RLVR_DEBUG", "SNAKEMAKE", "PYTEST", "MAKE", "OMP_", "VIRTUAL_ENV")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    away = Path(sys.executable).parent
    path = [each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != away]
    done = subprocess.run(
        command,
        cwd=root,
        env={**variables, "PATH": os.pathsep.join([str(environment / "bin"), *path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def assert_study_is_done(root: Path, environment: Path) -> None:
    verdicts = pd.read_csv(root / "results" / "tables" / "verdicts.csv")
    assert set(verdicts["hypothesis"]) == set(load_params(root / "params.yaml").arms)
    assert "</html>" in (root / "results" / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in plain(root, environment, "snakemake", "--cores", "2", "-n")


# answers what Snakemake asks of conda, and keeps the file of each environment that it is told to make
CONDA = """#!/bin/sh
case "$*" in
  info*) echo '{"conda_prefix": "/", "platform": "linux-64"}' ;;
  --version) echo conda 25.1.0 ;;
  config*) echo '{"get": {"channel_priority": "strict"}}' ;;
  "env create"*) while [ "$1" != --file ]; do shift; done; cp "$2" told-$$.yaml ;;
esac
"""


def test_sdm_conda_makes_one_environment_of_the_train_pins(tmp_path: Path) -> None:
    """With a stand-in for conda: what a real one would make of it is not tried."""
    copied = copy(ROOT, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "conda").write_text(CONDA, encoding="utf-8")
    (tmp_path / "bin" / "conda").chmod(0o755)
    copied.environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = copied.snakemake("--cores", "1", "--sdm", "conda", "--conda-create-envs-only")
    assert done.returncode == 0, done.stderr
    [told] = copied.study.glob("told-*.yaml")
    dependencies = yaml.safe_load(told.read_text(encoding="utf-8"))["dependencies"]
    pins = (ROOT / "envs" / "train.txt").read_text(encoding="utf-8").splitlines()
    assert dependencies == ["python=3.11", "pip", {"pip": pins}]


@pytest.mark.heavy
def test_plain_snakemake_does_a_default_study_with_the_train_pins_alone(
    checkout: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # of its own, since the package is installed into it too
    monkeypatch.setenv("RLVR_DEBUG_ENVS", str(tmp_path / "envs"))
    (checkout / "envs" / "train.txt").rename(checkout / "envs" / "plain.txt")
    try:
        python = build_venv("plain", checkout)
    except InputError as error:
        pytest.skip(str(error))
    package = (*PIP, "--python", str(python), "install", "-q", "--no-deps", "--no-build-isolation")
    subprocess.run([sys.executable, *package, "-e", str(checkout)], check=True)
    environment = python.parents[1]
    listed = plain(checkout, environment, "python", "-c", "import sys; print(sys.path)")
    assert str(ROOT) not in listed
    assert not {"pytest", "mypy", "uv"} & {path.name for path in python.parent.iterdir()}

    overlay = tmp_path / "mini.yaml"
    overlay.write_text(yaml.safe_dump(MINI), encoding="utf-8")
    params = load_params(checkout / "params.yaml", overlay)
    (checkout / "params.yaml").write_text(yaml.safe_dump(told(params)), encoding="utf-8")
    plain(checkout, environment, "snakemake", "--cores", "2")
    assert_study_is_done(checkout, environment)
    usual = finished_mini(tmp_path_factory)
    for name, table in usual.tables().items():
        place = "" if name == "metrics.json" else "tables"
        assert (checkout / "results" / place / name).read_bytes() == table, name


@pytest.mark.deep
def test_plain_snakemake_does_the_default_study_in_an_environment_made_by_pip(
    checkout: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    install = ("install", "-q", "-r", "envs/train.txt", "-e", ".")
    plain(checkout, environment, "python", *PIP, *install)
    plain(checkout, environment, "snakemake", "--cores", "2")
    assert_study_is_done(checkout, environment)
