"""Where `rlvr-debug check` places each fault, and whether it flags a healthy script.

    python -m benchmarks.check.run [--only KIND] [--precision bf16] [--names NAME ...] [--environment trl-1.0.0] [--out FOLDER]

Kinds are faults and settings (which are healthy). Each script runs under the check in a process of its own (forks.py). Writes benchmarks/check/results/<kind>.csv, with
the precision and the environment in its name where these are not the usual ones. Of a part, by --names, a table is written
only where --out says where.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.check.faults import FAULTS, Fault
from benchmarks.check.forks import Forks
from benchmarks.check.settings import HEALTHY, SETTINGS
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_csv
from rlvr_debug.processes import run_main
from rlvr_debug.replay.answer import status_of
from rlvr_debug.venvs import build_venv

_HERE = Path(__file__).parent
SCRIPT = _HERE / "script.py"
RESULTS = _HERE / "results"
KINDS = ("faults", "settings")
LIMIT = 300  # seconds for a script
COULD_NOT = 2  # the exit status of `rlvr-debug check` where a script could not be run


@dataclass(frozen=True)
class Outcome:
    """What the check said of one script. `placed` is 1 where it should have said so, `named` where a name fits.

    remarks: consequences of the settings that it says are out of their bounds.
    """

    name: str
    expected: str
    first: str
    placed: int
    names: str
    named: str
    share: str
    not_seen: str
    remarks: str
    exit: int
    seconds: float
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--names", nargs="+", default=[])
    parser.add_argument("--environment", help="of envs/, for another TRL release")
    parser.add_argument("--processes", type=int, default=1, help="how many train together")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the tables")
    args = parser.parse_args()
    python = str(build_venv(args.environment)) if args.environment else sys.executable
    version = _version(python)
    usual = args.precision == "float32" and not args.environment
    suffix = "" if usual else f"-{args.precision}-{args.environment or 'trl'}"
    suffix += f"-{args.processes}-processes" if args.processes > 1 else ""
    for kind in (args.only,) if args.only else KINDS:
        names = _names(kind, args.precision, version, args.names, args.processes)
        if not names:
            continue
        with Forks(python) as forks, ThreadPoolExecutor(args.cores) as pool:
            assert forks.folder  # is read once, before threads ask for it
            how = {"forks": forks, "precision": args.precision, "processes": args.processes}
            outcomes = list(pool.map(partial(_run, kind, **how), names))
        _totals(kind, outcomes)
        if args.out or not args.names:
            write_csv((args.out or RESULTS) / f"{kind}{suffix}.csv", Outcome, outcomes)


def _version(python: str) -> Version:
    words = (python, "-c", "from importlib.metadata import version; print(version('trl'))")
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return Version(said.strip())


def _names(
    kind: str, precision: str, version: Version, asked: Sequence[str], processes: int
) -> list[str]:
    """Return those of a kind that this TRL can run, in so many processes. Raises InputError for names that are of no kind."""
    known = {"faults": list(FAULTS), "settings": list(HEALTHY)}
    if unknown := set(asked) - {name for names in known.values() for name in names}:
        raise InputError(f"--names: {', '.join(sorted(unknown))}: no such fault or setting")
    chosen = [name for name in known[kind] if not asked or name in asked]
    if kind == "settings":
        return [name for name in chosen if _has(version, name)]
    told = [FAULTS[name] for name in chosen if FAULTS[name].processes == processes]
    if precision != "float32":
        told = [fault for fault in told if fault.precision == "any"]
    return [f.name for f in told if version >= Version(f.since) and _has(version, f.setting)]


def _has(version: Version, settings: str) -> bool:
    return all(
        version >= Version(SETTINGS[name].since) for name in filter(None, settings.split("+"))
    )


def _run(kind: str, name: str, *, forks: Forks, precision: str, processes: int) -> Outcome:
    """Print and return what the check says of a script."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        what = "--fault" if kind == "faults" else "--setting"
        words = [str(SCRIPT), what, name, "--precision", precision]
        status, said = forks.run(words, folder, LIMIT, processes)
        answer = folder / "answer.json"
        report = read_json(answer) if answer.is_file() else None
    seconds = round(time.monotonic() - started, 1)
    fault = FAULTS[name] if kind == "faults" else None
    lines = said.strip().splitlines()
    last = "" if report else (lines or [f"ended with status {status}"])[-1]
    status = status_of(report) if report else COULD_NOT
    outcome = _outcome(name or "plain", fault, report or {}, status, seconds, last)
    mark = "ok " if outcome.placed else "BAD"
    expected = outcome.expected or "nothing"
    print(
        f"{mark} {outcome.seconds:5.1f} s  {outcome.name:40} {expected:34} {outcome.first or '-':28} {outcome.names or '-'}"
        f"  {outcome.share}  {outcome.said[:160]}",
        flush=True,
    )
    return outcome


def _outcome(
    name: str, fault: Fault | None, report: dict[str, Any], status: int, seconds: float, said: str
) -> Outcome:
    segments = {s["segment"]: s for s in report.get("segments", [])}
    first = report.get("first") or ""
    found = segments.get(first, {})
    names = found.get("names", [])
    causes = {entry["cause"] for entry in names}
    expected = fault.segments if fault else ()
    placed = first in expected if fault else bool(report) and not first and status == 0
    named = "" if not fault or not fault.causes else str(int(bool(causes & set(fault.causes))))
    unseen = [key for key, s in segments.items() if s["status"] == "not seen"]
    # of a healthy script, the segment that used most of its tolerance
    used = {key: float(s.get("share") or 0.0) for key, s in segments.items()}
    most = first or max(used, key=lambda key: used[key], default="")
    share = f"{most} {used[most]:.3g}" if most in used else ""
    return Outcome(
        name,
        "|".join(expected),
        first,
        int(placed),
        "|".join(entry["name"] for entry in names),
        named,
        share,
        "|".join(unseen),
        "|".join(each["name"] for each in report.get("consequences", []) if not each["passed"]),
        status,
        seconds,
        said or found.get("note", ""),
    )


def _totals(kind: str, rows: Sequence[Outcome]) -> None:
    failed = sum(row.exit == COULD_NOT for row in rows)
    if kind != "faults":
        flagged = sum(bool(row.first) for row in rows)
        said = sum(bool(row.remarks) for row in rows)
        print(
            f"{flagged} of {len(rows)} healthy scripts flagged, {said} with a setting out of its bound, {failed} could not be checked"
        )
        return
    placed = sum(row.placed for row in rows)
    share = f"{placed} of {len(rows)} faults in the right segment ({placed / len(rows):.1%})"
    print(f"{share}, {failed} not checked")
    # of the placed ones, those that no variant of the library implements, of a cause that it has
    counted = [
        row for row in rows if row.placed and row.named and FAULTS[row.name].origin != "library"
    ]
    if counted:
        named = sum(row.named == "1" for row in counted)
        print(
            f"{named} of {len(counted)} named ({named / len(counted):.1%}), of the placed ones that have a cause and are no variant"
        )


if __name__ == "__main__":
    run_main(main)
