"""What the check says of scripts by authors who had read docs/check.md and nothing else of this project.

    python -m benchmarks.check.blind [--names a/fault_01 ...] [--out FILE]

blind/labels.csv has, for each script, the author's words, written before anything ran (label, what), the segments or
settings that they mean (right; empty for healthy scripts and for what no step can show), and what the check of a commit
said first when it ran on them once (first_run). Later code was improved on them: it writes results/blind.csv.
Scripts of `e`, `v`, `y` and `ab` train in two processes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.check.forks import Forks
from lab.tables import read_csv
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_csv
from rlvr_debug.processes import run_main

_HERE = Path(__file__).parent
LABELS = _HERE / "blind" / "labels.csv"
RESULTS = _HERE / "results" / "blind.csv"
LIMIT = 300  # seconds for a script
# the commits that the last authors' scripts ran on, with one process and with two
LAST_ROUNDS = ("d3037b1", "cfbc83d")


@dataclass(frozen=True)
class Label:
    """A script of blind/ and what its author wrote of it; the fields are the columns of labels.csv."""

    script: str
    commit: str
    label: str
    what: str
    right: str
    first_run: str

    @property
    def processes(self) -> int:
        return 2 if self.script.startswith(("e/", "v/", "y/", "ab/")) else 1

    @property
    def is_healthy(self) -> bool:
        return "healthy" in self.script

    def is_right(self, said: str) -> bool:
        """Return whether an answer is right: the segment that deviates first, else settings; a healthy script has none."""
        if self.is_healthy:
            return not said or said.startswith("settings: ")
        right = filter(None, self.right.split("; "))
        return not set(said.split("; ")).isdisjoint(right)


@dataclass(frozen=True)
class Said:
    """What the check says first of a script; right: 1 where it is."""

    script: str
    said: str
    right: int


def read_labels() -> list[Label]:
    return read_csv(LABELS, Label)


def blind_totals(pairs: Iterable[tuple[Label, str]]) -> tuple[int, int, int, int]:
    """Return how many faults are placed, of how many, and how many healthy scripts are accused, of how many."""
    pairs = list(pairs)
    faults = [label.is_right(said) for label, said in pairs if not label.is_healthy]
    healthy = [label.is_right(said) for label, said in pairs if label.is_healthy]
    return sum(faults), len(faults), len(healthy) - sum(healthy), len(healthy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--names", nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = {label.script: label for label in read_labels()}
    if unknown := set(args.names) - known.keys():
        raise InputError(f"--names: {', '.join(sorted(unknown))}: no such script in {LABELS.name}")
    labels = [known[name] for name in args.names or known]
    with Forks(sys.executable) as forks:
        pairs = [(label, checked_blind(label, forks)) for label in labels]
    if args.out or not args.names:
        rows = [Said(label.script, said, int(label.is_right(said))) for label, said in pairs]
        write_csv(args.out or RESULTS, Said, rows)
    placed, faults, accused, healthy = blind_totals(pairs)
    print(f"placed {placed} of {faults}, accused {accused} of {healthy} healthy scripts")


def checked_blind(label: Label, forks: Forks) -> str:
    """Return the first deviating segment, or the settings outside of their bounds. Raise InputError if the script fails."""
    script = label.script
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copied = shutil.copy(LABELS.parent / f"{script}.py", folder)
        # the scripts load the model beside them; four load one that writes calls of tools, which its author had trained
        shutil.copytree(ROOT / "models" / "tiny", folder / "tiny")
        (folder / "tiny" / "sft").symlink_to(ROOT / "models" / "tiny-calculator")
        status, log = forks.run([str(copied)], folder, LIMIT, label.processes)
        file = folder / "answer.json"
        if status or not file.is_file():
            raise InputError(f"{script}: {log.strip().splitlines()[-1:]}, expected an answer")
        answer = read_json(file)
    outside = [f"settings: {c['name']}" for c in answer["consequences"] if not c["passed"]]
    said = answer["first"] or "; ".join(outside)
    print(f"{script}: {said or 'nothing'}", flush=True)
    return said


if __name__ == "__main__":
    run_main(main)
