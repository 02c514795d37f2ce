"""The wheel alone: diagnosis works with it, without a checkout and without what only a study needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from rlvr_debug.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOG = ROOT / "tests" / "logs" / "truncation"
HEAVY = {"psutil", "pydot", "scipy", "snakemake", "statsmodels", "torch", "transformers"}

Call = Callable[..., subprocess.CompletedProcess[str]]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", "\n".join(lines)))


def caller(folder: Path, words: list[str], **variables: str) -> Call:
    """Return what calls the command line in an empty folder, with no PYTHONPATH but one that is given."""
    folder.mkdir()
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *arguments],
            cwd=folder,
            env={**kept, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return call


@pytest.fixture
def sources(tmp_path: Path) -> Call:
    """The library's sources without anything else of the checkout, as a wheel has them."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "lib" / "alone" / "src", ignore=ignored)
    words = [sys.executable, "-m", "rlvr_debug.cli"]
    return caller(tmp_path / "empty", words, PYTHONPATH=str(tmp_path / "lib" / "alone" / "src"))


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_dependency_is_pinned_as_the_environments_of_the_project_pin_it(extra: str) -> None:
    asked = EXTRAS[extra] if extra else PROJECT["dependencies"]
    known = {**pins("test"), **pins("train")}
    for line in asked:
        name, _, version = line.partition("==")
        assert known[name] == version, line


def test_diagnosis_loads_nothing_that_only_a_study_needs() -> None:
    code = (
        "import sys\n"
        "from rlvr_debug.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "diagnose", str(LOG)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "context-truncation" in done.stdout
    assert "numpy" in done.stderr.split()
    assert not HEAVY & set(done.stderr.split())


def assert_diagnoses_as_the_checkout_does(alone: Call, folder: Path) -> None:
    """folder: the one that `alone` is called in."""
    of_checkout = caller(folder.with_name("beside"), [sys.executable, "-m", "rlvr_debug.cli"],
                         PYTHONPATH=str(ROOT / "src"))  # fmt: skip
    said = [call("diagnose", str(LOG)) for call in (alone, of_checkout)]
    assert (said[0].returncode, said[0].stderr) == (0, "")
    assert said[0].stdout == said[1].stdout
    words = ("diagnose", str(LOG), "--json", "--overlay-out", "mine.yaml")
    found, expected = (json.loads(call(*words).stdout) for call in (alone, of_checkout))
    assert found == expected
    assert found["ranked"][0]["hypothesis"] == "context-truncation"
    overlays = [
        (place / "mine.yaml").read_bytes() for place in (folder, folder.with_name("beside"))
    ]
    assert overlays[0] == overlays[1]


def assert_what_needs_a_checkout_says_so(alone: Call) -> None:
    for words in (
        "run",
        "plan",
        "check-case",
        "status",
        "report",
        "compare HEAD",
        "new-hypothesis x",
    ):
        done = alone(*words.split())
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("error: ")
        assert "expected a checkout of rlvr-debug" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.heavy
def test_outside_of_a_checkout_a_log_is_diagnosed_as_in_it(sources: Call, tmp_path: Path) -> None:
    assert_diagnoses_as_the_checkout_does(sources, tmp_path / "empty")


@pytest.mark.heavy
def test_outside_of_a_checkout_the_commands_that_need_one_say_so_in_a_line(sources: Call) -> None:
    assert_what_needs_a_checkout_says_so(sources)


def built(place: Path) -> Path:
    """Return a wheel, made from a copy of what git tracks."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the checkout is no git repository: which files are the project's is not known")
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (place / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / "copy" / name, follow_symlinks=False)
    options = ["-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(place / "copy")]
    subprocess.run(command, check=True)
    [wheel] = place.glob("*.whl")
    return wheel


def test_the_wheel_has_the_data_files_and_the_license_and_nothing_beside_the_library(
    tmp_path: Path,
) -> None:
    with ZipFile(built(tmp_path)) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        others = set(archive.namelist()) - names
        assert archive.read("rlvr_debug/study/params.yaml") == (ROOT / "params.yaml").read_bytes()
    copy = tmp_path / "copy" / "src"
    files = (str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert names == {name for name in files if ".egg-info/" not in name}
    assert any(name.endswith("/licenses/LICENSE") for name in others)


@pytest.mark.heavy
def test_the_wheel_in_an_empty_environment_diagnoses_a_log(tmp_path: Path) -> None:
    wheel, venv = built(tmp_path), tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = caller(tmp_path / "build", [str(venv / "bin" / "python"), "-m", "pip"])
    done = install("install", "-q", "--disable-pip-version-check", str(wheel))
    if done.returncode and install("install", "--no-deps", PROJECT["dependencies"][0]).returncode:
        pytest.skip(f"nothing can be installed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert install("check").returncode == 0
    listed = {each["name"] for each in json.loads(install("list", "--format", "json").stdout)}
    assert not HEAVY & listed
    alone = caller(tmp_path / "empty", [str(venv / "bin" / "rlvr-debug")])
    assert alone("--version").stdout == f"rlvr-debug {PROJECT['version']}\n"
    assert_diagnoses_as_the_checkout_does(alone, tmp_path / "empty")
    assert_what_needs_a_checkout_says_so(alone)
    table = tmp_path / "empty" / "completions_00001.parquet"
    table.write_bytes(b"PAR1" + bytes(100))
    assert alone("diagnose", str(table)).stderr.endswith("pip install 'rlvr-debug[parquet]'\n")
