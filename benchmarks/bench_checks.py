"""The check on releases of TRL and verifiers, segment by segment: a known bug deviates in the broken one, and not in the mended one.

    python -m benchmarks.bench_checks [--out benchmarks/checks.csv] [--only WORD]

Each release runs in an environment of its own, which is built if it is not there. What could not be run is in the
table, and why. Ends with status 1 where a known bug does not deviate, or deviates where it was mended.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lab.releases.checked import checked_release
from lab.releases.checks import (
    CSV,
    SUBJECTS,
    checks_of,
    checks_text,
    in_order,
    missing,
    read_checks,
    write_checks,
)
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument(
        "--only", default="", help="run those whose name has this word; the others stay as they are"
    )
    args = parser.parse_args()
    found = read_checks(args.out) if args.only and args.out.is_file() else []
    for subject in SUBJECTS:
        name = f"{subject.release.package} {subject.column}"
        if args.only not in name:
            continue
        start = time.perf_counter()
        answer = checked_release(subject)
        found = [each for each in found if not each.of(subject)] + checks_of(subject, answer)
        write_checks(in_order(found), args.out)
        said = f"not run: {answer}" if isinstance(answer, str) else answer["answer"]
        print(f"{name}: {said} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
    print(checks_text(found))
    if wrong := missing(found):
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
