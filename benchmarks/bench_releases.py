"""The check on releases of TRL and verifiers, segment by segment: a known bug deviates in the broken one, and not in the mended one.

    python -m benchmarks.bench_releases [--out benchmarks/releases.csv] [--packages benchmarks/packages.csv] [--only WORD]

Then the packages of lab/releases/packages.yaml. Each runs in an environment of its own, which is built if it is not
there. What could not be run is in the table, and why. Ends with status 1 where a known bug does not deviate, or deviates
where it was mended, and where a package deviates otherwise than packages.yaml explains.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lab.releases import checks, packages
from lab.releases.checked import checked_release
from rlvr_debug.files import write_csv
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=checks.CSV)
    parser.add_argument("--packages", type=Path, default=packages.CSV)
    parser.add_argument(
        "--only", default="", help="run those whose name has this word; the others stay as they are"
    )
    args = parser.parse_args()
    found = checks.read_checks(args.out) if args.only and args.out.is_file() else []
    for subject in checks.SUBJECTS:
        if args.only not in subject.name:
            continue
        start = time.perf_counter()
        answer = checked_release(subject)
        rest = [each for each in found if not each.of(subject)]
        found = checks.in_order([*rest, *checks.checks_of(subject, answer)])
        checks.write_checks(found, args.out)
        said = f"not run: {answer}" if isinstance(answer, str) else answer["answer"]
        _print(subject.name, said, start)
    said_of = _packages(args.packages, args.only)
    print(checks.checks_text(found) if found else "")
    if wrong := [*(checks.missing(found) if found else ()), *packages.unexpected(said_of)]:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(1)


def _packages(out: Path, only: str) -> list[packages.Said]:
    found = packages.read_said(out) if only and out.is_file() else []
    for package in packages.packages():
        if only in package.name:
            start = time.perf_counter()
            said = packages.checked_package(package)
            found = packages.in_order([*(each for each in found if not each.of(package)), said])
            write_csv(out, packages.Said, found)
            _print(package.name, said.says, start)
    return found


def _print(name: str, said: str, start: float) -> None:
    print(f"{name}: {said} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_main(main)
