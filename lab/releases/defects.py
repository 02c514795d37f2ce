"""Show each defect of defects.yaml by lines that need the package alone, as it was released and with a patch of one line.

    python -m lab.releases.defects [--only WORD]

Ends with status 1 where lines print another thing, or stand elsewhere, than defects.yaml says.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.check.forks import LIBRARIES
from lab.releases.checked import forks_of, run_apart
from lab.releases.packages import packages
from lab.tables import markdown
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_yaml, write_text
from rlvr_debug.processes import run_main
from rlvr_debug.venvs import build_over

COSTS = ROOT / "benchmarks" / "defects.csv"
DEFECTS = ROOT / "lab" / "releases" / "defects.yaml"
_SITE = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


@dataclass(frozen=True)
class Defect:
    """A defect of a release. file, line: where `was` stands, whose exchange for `be` mends it. lines: show it; prints, mended: what
    they print last, before and after. planted: the faults and training settings that are it in our trainer, and asked, the
    settings of both runs (costs.py); or why there are none."""

    package: str
    version: str
    what: str
    file: str
    line: int
    was: str
    be: str
    lines: str
    prints: str
    mended: str
    planted: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    no_study: str = ""

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}"

    @property
    def place(self) -> str:
        return f"{self.file} {self.line}"


def defects() -> list[Defect]:
    return [Defect(**each) for each in read_yaml(DEFECTS)]


def wrong(defect: Defect) -> Iterator[str]:
    """Return a line for each thing that is not as said."""
    python = _python(defect)
    text = (python.parents[1] / _SITE / defect.file).read_text(encoding="utf-8")
    before, found, after = text.partition(defect.was)
    line = f"{before}{found}".count("\n") + 1
    if not found or line != defect.line:
        yield f"{defect.file}: line {line if found else 'none'}, expected {defect.line}"
    with tempfile.TemporaryDirectory() as scratch:
        package, lines = Path(defect.file).parts[0], Path(scratch, "lines", "lines.py")
        shutil.copytree(python.parents[1] / _SITE / package, Path(scratch, package))
        write_text(Path(scratch, defect.file), f"{before}{defect.be}{after}")
        write_text(lines, defect.lines)
        for where, expected in (("", defect.prints), (scratch, defect.mended)):
            if (said := _said(python, lines, where)) != expected:
                how = "with the patch" if where else "as released"
                yield f"{how}: prints {said!r}, expected {expected!r}"


def _python(defect: Defect) -> Path:
    ways = (each for each in packages() if f"{each.package} {each.version}" == defect.name)
    way = next(ways, None)
    base, pins = ("trl", (defect.name.replace(" ", "=="),)) if way is None else (way.base, way.pins)
    return build_over(base, defect.name.replace(" ", "-"), pins)


def _said(python: Path, lines: Path, first: str) -> str:
    """Return the last line that is printed, or that an error ends with. first: a folder whose packages come first."""
    command = [*forks_of(str(python), LIBRARIES).python, str(lines)]
    done = run_apart(command, ROOT, PYTHONPATH=first)
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or [""]
    return said[-1].strip()


def defects_text() -> str:
    """Return a table of the defects: what, where, the patch and the cost."""
    with COSTS.open(newline="", encoding="utf-8") as file:
        costs = {row["defect"]: row for row in csv.DictReader(file)}
    rows = (
        (d.name, d.what, d.place, f"{_code(d.was)} → {_code(d.be)}", _cost(d, costs))
        for d in defects()
    )
    return markdown("package | what | where | patch | costs", rows)


def _cost(defect: Defect, costs: Mapping[str, Mapping[str, str]]) -> str:
    if not defect.planted:
        return f"no study: {defect.no_study}"
    row = costs[defect.place]
    value, low, high, whole = (f"{float(row[k]):.2f}" for k in ("cost", "low", "high", "without"))
    return f"{value} [{low}, {high}] of {whole}".replace("-0.00", "0.00")


def _code(text: str) -> str:
    return f"`{text.splitlines()[-1].strip()}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="show those whose package has this word")
    word, failed = parser.parse_args().only, False
    for defect in defects():
        if word in defect.name:
            lines = [*wrong(defect)]
            failed |= bool(lines)
            print(f"{defect.name}: {defect.what}: {'; '.join(lines) or 'so it is'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    run_main(main)
