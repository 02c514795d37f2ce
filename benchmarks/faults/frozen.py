"""What was frozen before the test faults were written: `python -m benchmarks.faults.frozen` records it anew.

To change any of it takes new test faults: what a tool was changed for is no test of it.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import yaml

from rlvr_debug.config import ROOT
from rlvr_debug.errors import InputError, run_main
from rlvr_debug.files import sha256, write_text

__all__ = ["RECORD", "frozen_files", "record"]

RECORD = Path(__file__).with_name("frozen.yaml")
_FOLDERS = ("hypotheses", "probes", "verdicts", "diagnose")
# of released trainers, which no case is
_OTHERS = ("release", "replay", "recording", "loss_gradient", "trained_ratio")


def frozen_files(root: Path = ROOT) -> dict[str, str]:
    """Digest by path: hypotheses, probes, thresholds, what reads logs, and the study itself."""
    found = [
        file
        for folder in _FOLDERS
        for file in sorted((root / "src" / "rlvr_debug" / folder).rglob("*"))
        if file.suffix in (".py", ".yaml") and not any(word in file.stem for word in _OTHERS)
    ]
    found += [
        root / "benchmarks" / name
        for name in ("faults/study.py", "faults/interventions.yaml", "peer_findings.yaml")
    ]
    return {str(file.relative_to(root)): sha256(file) for file in found}


def record(root: Path = ROOT) -> dict[str, Any]:
    """commit: the last one, which must hold these files as they are. Raises InputError where it does not."""
    files = frozen_files(root)
    changed = _git(root, "status", "--porcelain", "--", *files)
    if changed:
        raise InputError(
            f"{changed.splitlines()[0][3:]}: found changes, expected all of it committed"
        )
    return {"commit": _git(root, "rev-parse", "HEAD").strip(), "files": files}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    text = yaml.safe_dump(record(), sort_keys=False)
    write_text(
        RECORD, f"# The benchmark's freeze; tests/test_benchmark.py holds the files to it.\n{text}"
    )
    print(RECORD)


if __name__ == "__main__":
    run_main(main)
