"""Environments beside the main one, for programs whose packages it must not hold: envs/<name>.txt -> .envs/<name>/."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_text
from rlvr_debug.processes import without_our_packages

__all__ = ["build_venv", "python_of", "sampler_venvs", "venv_names"]

_MAIN = ("train", "test")  # these are the main environment's


def venv_names(root: Path = ROOT) -> list[str]:
    return sorted(f.stem for f in (root / "envs").glob("*.txt") if f.stem not in _MAIN)


def sampler_venvs(sampler: str, vllm: Mapping[str, Any]) -> list[str]:
    """The environment that a study's sampler needs beside the main one. vllm: params.yaml's."""
    return [vllm["environment"]] if sampler == "vllm" else []


def python_of(name: str, root: Path = ROOT) -> Path:
    """Its interpreter, built or not."""
    return root / ".envs" / name / "bin" / "python"


def build_venv(name: str, root: Path = ROOT) -> Path:
    """Install envs/<name>.txt and this library's sources, unless that was done; returns the interpreter.

    A file `ready` with the digest of the requirements is written last, so that an interrupted
    installation starts again. Raises InputError for an unknown name or a failed installation.
    """
    if name not in venv_names(root):
        known = ", ".join(venv_names(root))
        raise InputError(f"envs/{name}.txt: no such file, expected one of {known}")
    requirements = root / "envs" / f"{name}.txt"
    place, digest = root / ".envs" / name, sha256(requirements)
    place.parent.mkdir(exist_ok=True)
    with (place.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = place / "ready"
        if ready.is_file() and ready.read_text(encoding="utf-8") == digest:
            ready.touch()  # for who compares its age with that of the requirements
        else:
            shutil.rmtree(place, ignore_errors=True)
            _run(name, sys.executable, "-m", "venv", str(place))
            # quiet: what pip says of itself would bury what went wrong
            pip = (str(python_of(name, root)), "-m", "pip", "--disable-pip-version-check")
            # pins that override what packages ask for are whole; pip would go by what they ask for
            whole = ("--no-deps",) if requirements.with_suffix(".overrides").is_file() else ()
            _run(name, *pip, "install", "-q", *whole, "-r", str(requirements))
            [packages] = place.glob("lib/python*/site-packages")
            write_text(packages / "rlvr_debug.pth", f"{root / 'src'}\n")
            write_text(ready, digest)
    return python_of(name, root)


def _run(name: str, *command: str) -> None:
    variables = without_our_packages()
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise InputError(f"envs/{name}.txt: it could not be installed: {said}")
