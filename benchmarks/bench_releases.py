"""Every probe on every release: found in the broken one, clear in the mended one.

    python -m benchmarks.bench_releases [--out benchmarks/releases.csv]

Each release runs in an environment of its own, which is built if it is not there. What could not be run
is in the table, and why. Ends with status 1 where a known bug is not found, or found where it was mended.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.releases.table import (
    CSV,
    RELEASES,
    Release,
    missing,
    releases_text,
    results_of,
    write_results,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.processes import run_main, variables_apart
from rlvr_debug.venvs import build_venv

__all__ = ["probed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=CSV)
    args = parser.parse_args()
    found = []
    for release in RELEASES:
        start = time.perf_counter()
        report = probed(release)
        found += results_of(release, report)
        said = f"not run: {report}" if isinstance(report, str) else "probed"
        seconds = time.perf_counter() - start
        print(f"{release.package} {release.column}: {said}, {seconds:.0f} s", file=sys.stderr)
    write_results(found, args.out)
    print(releases_text(found))
    if wrong := missing(found):
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(1)


def probed(release: Release) -> Mapping[str, Any] | str:
    """Return what lab.releases.probe reports in the release's environment, or why it does not."""
    try:
        python = build_venv(release.environment)
    except InputError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [
            str(python),
            *("-m", "lab.releases.probe"),
            *("--package", release.package, "--release", release.version),
            *("--temperature", str(release.temperature), "--out", str(out)),
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=variables_apart(), check=False
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        report: Mapping[str, Any] = read_json(out)
        return report


if __name__ == "__main__":
    run_main(main)
