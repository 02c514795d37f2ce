"""Make all committed results again: run their studies, and put what a reader opens where git has it.

    python -m lab.results [full original ...] [--cores 2]

The default study works in `results` itself. Every other one is run in studies/<name>, and its tables, charts, metrics,
check, resolved parameters and report are copied to the folder of its name below `results`, beside a README that says
which command wrote them at which commit. What is committed must be what ran, so that no other change may be there.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml, write_text
from rlvr_debug.processes import git, run_main
from rlvr_debug.study.running import run_study

# of a study's results, what a reader opens; a study has its audit where it has environments of its own
KEPT = ("report.html", "metrics.json", "check.json", "study.json", "tables", "charts", "audit")
_MOST = 1_000_000  # bytes of a report


@dataclass(frozen=True)
class Committed:
    """A study whose results are in git, as results.yaml has it."""

    title: str
    place: str
    every_phase: bool = False


STUDIES = {
    name: Committed(**told) for name, told in read_yaml(ROOT / "lab" / "results.yaml").items()
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--cores", help="as the profile says, without")
    args = parser.parse_args()
    if unknown := [name for name in args.studies if name not in STUDIES]:
        raise InputError(f"{unknown[0]}: no such study, expected some of {', '.join(STUDIES)}")
    commit = _commit(ROOT)
    for name in args.studies or STUDIES:
        _make(name, commit, args.cores)


def _commit(root: Path) -> str:
    """Return what git HEAD is. Raise InputError where tracked files are others than there, but for results."""
    said = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", folder=root)
    if said:
        raise InputError(
            f"{said.splitlines()[0][3:]}: changed since the commit, expected what is committed: "
            "results name the commit that wrote them"
        )
    return git("rev-parse", "--short", "HEAD", folder=root).strip()


def _make(name: str, commit: str, cores: str | None) -> None:
    study = STUDIES[name]
    overlay = Path(os.path.relpath(ROOT / "studies" / f"{name}.yaml")) if study.place else None
    begin = time.monotonic()
    if run_study(overlay, cores, every_phase=study.every_phase):
        raise InputError(f"study {name}: it did not end; the same command takes it up again")
    minutes = (time.monotonic() - begin) / 60
    if not study.place:
        _check_size(ROOT / "results" / "report.html")
        return
    own = f"make run OVERLAY=studies/{name}.yaml{' ALL=1' if study.every_phase else ''}"
    text = (
        f"# {study.title}\n\nWhat `{own}` wrote at commit {commit}, in {minutes:.0f} minutes on "
        f"{cores or os.cpu_count()} cores ({platform.machine()}), with its environments being there. "
        "`report.html` is one page that needs no network. On another processor the same seeds are "
        "other runs, with effects alike.\n"
    )
    keep(ROOT / "studies" / name / "results", ROOT / "results" / study.place, text)


def keep(results: Path, place: Path, readme: str) -> None:
    """Copy what a reader opens of a study's results to `place`, instead of what is there, and say what it is.

    Raise InputError, and leave what is there, where a file is missing or the report is larger than a megabyte.
    """
    _check_size(results / "report.html")
    if missing := [name for name in KEPT if not (results / name).exists()]:
        raise InputError(
            f"{results / missing[0]}: not there, expected the results of a whole study"
        )
    made = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    for name in KEPT:
        found = results / name
        made.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if found.is_dir() else shutil.copyfile)(found, made / name)
    write_text(made / "README.md", readme)
    shutil.rmtree(place, ignore_errors=True)
    made.replace(place)


def _check_size(report: Path) -> None:
    if report.is_file() and report.stat().st_size > _MOST:
        raise InputError(f"{report}: {report.stat().st_size} bytes, expected at most {_MOST}")


if __name__ == "__main__":
    run_main(main)
