"""`rlvr-debug check` on scripts that its author did not write: some of benchmarks/check, on TRL and its older releases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.check.faults import FAULTS
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.processes import variables_apart
from rlvr_debug.venvs import build_venv

SCRIPT = ROOT / "benchmarks" / "check" / "script.py"
# one of each kind, and those that a first version got wrong; all of them: python -m benchmarks.check.run
SETTINGS = (
    *("tools", "lora-dropout", "engine", "several-turns", "own-optimizer", "resumed"),
    *("iterations-2+loss-vespo", "accumulation-4+entropy-bonus", "rewards-without-a-value"),
)
PLANTED = (
    *("advantages-of-others", "eos-not-trained", "stale-sampler", "text-round-trip"),
    *("prompt-without-tools", "kl-subtracted", "weights-stored-in-bfloat16"),
)
# older releases, and what cannot be seen in them
RELEASES: dict[str, set[str]] = {
    "trl-1.0.0": set(),
    "trl-0.29.0": set(),
}


def checked(python: str | Path, folder: Path, *words: str) -> dict[str, Any]:
    out, told = folder / "answer.json", folder / "told.json"
    told.write_text(
        json.dumps({"out": str(out), "steps": 3, "rewards": True, "record": None}), encoding="utf-8"
    )
    program = "rlvr_debug.trainers.trl.check_script"
    environment = variables_apart()
    environment["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run(
        [str(python), "-m", program, str(told), str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert out.is_file(), done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answer


@pytest.mark.heavy
@pytest.mark.parametrize("setting", SETTINGS)
def test_an_unusual_healthy_script_is_not_flagged(setting: str, tmp_path: Path) -> None:
    answer = checked(sys.executable, tmp_path, "--setting", setting)
    assert answer["first"] is None, answer["answer"]


@pytest.mark.heavy
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_of_a_script_is_found_where_it_is(fault: str, tmp_path: Path) -> None:
    answer = checked(sys.executable, tmp_path, "--fault", fault)
    assert answer["first"] in FAULTS[fault].segments, answer["answer"]


@pytest.mark.heavy
@pytest.mark.releases
@pytest.mark.parametrize("environment", RELEASES)
def test_an_older_release_is_recorded_in_every_segment(environment: str, tmp_path: Path) -> None:
    try:
        python = build_venv(environment)
    except InputError as error:
        pytest.skip(str(error))
    answer = checked(python, tmp_path, "--setting", "iterations-2+kl")
    assert answer["trainer"] == environment.replace("-", " ")
    assert answer["first"] is None, answer["answer"]
    unseen = {e["segment"] for e in answer["segments"] if e["status"] == "not seen"}
    assert unseen == RELEASES[environment]
    faulty = checked(python, tmp_path, "--fault", "advantages-of-others")
    assert faulty["first"] in FAULTS["advantages-of-others"].segments
