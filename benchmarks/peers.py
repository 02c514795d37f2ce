"""What two other readers of logs say, rldoctor 0.2.0 and rlprobe 0.1.0, which run in an environment of their own.

envs/peers.txt pins them; benchmarks/peer_findings.yaml says for which hypotheses their findings stand.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import variables_apart

__all__ = ["Said", "hypotheses_of", "rldoctor", "rlprobe"]

_PROBLEMS = ("CRITICAL", "WARNING")


@dataclass(frozen=True)
class Said:
    """What a tool said of a log: findings, the worst first; hypotheses, in that order; or why nothing."""

    findings: tuple[str, ...]
    hypotheses: tuple[str, ...]
    failed: str = ""


def hypotheses_of(tool: str, findings: Sequence[str]) -> tuple[str, ...]:
    path = ROOT / "benchmarks" / "peer_findings.yaml"
    known = yaml.safe_load(path.read_text(encoding="utf-8"))[tool]
    return tuple(dict.fromkeys(slug for name in findings for slug in known[name]))


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Standard output, and the last line of the error if there was one."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables_apart(),
        timeout=120,
        check=False,
    )
    if done.returncode:
        return "", (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return done.stdout, ""


def rldoctor(folder: Path, python: Path) -> Said:
    """Its warnings and critical findings, the critical ones first."""
    command = [str(python.parent / "rl-doctor"), "diagnose", str(folder / "trainer_state.json")]
    text, failed = _run([*command, "--format", "json", "--no-color"])
    if failed:
        return Said((), (), failed)
    found = json.loads(text)["findings"]
    names = [f["detector"] for level in _PROBLEMS for f in found if f["severity"] == level]
    return Said(tuple(names), hypotheses_of("rldoctor", names))


def rlprobe(folder: Path, python: Path) -> Said:
    """All its findings, as it orders them."""
    text, failed = _run([str(python), "-m", "benchmarks.peer_rlprobe", str(folder)])
    if failed:
        return Said((), (), failed)
    names = [f["signature_id"] for f in json.loads(text) if f["severity"] != "info"]
    return Said(tuple(names), hypotheses_of("rlprobe", names))
