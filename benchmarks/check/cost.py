"""What the check costs: a script's three steps alone and under it, with the memory of both.

    python -m benchmarks.check.cost [--size tiny|0.5B] [--threads 2]

Prints seconds of the clock and of the processor, and the most memory that was resident, weights in files included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import run_main

_SCRIPT = Path(__file__).with_name("sized.py")


@dataclass(frozen=True)
class Cost:
    """seconds: of the clock; cpu: of the processor; gib: the most memory of any of its processes."""

    seconds: float
    cpu: float
    gib: float
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    # sized.py knows which there are; a process that imports it is large, and what it starts would count its memory
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    words = [str(_SCRIPT), "--size", args.size]
    alone = _run([sys.executable, *words], args.threads)
    checked = _run(
        [sys.executable, "-m", "rlvr_debug.cli", "check", "--json", *words], args.threads
    )
    answer: dict[str, Any] = json.loads(checked.said)
    for name, cost in (("alone", alone), ("checked", checked)):
        print(f"{name:8} {cost.seconds:7.1f} s, processor {cost.cpu:7.1f} s, {cost.gib:5.2f} GiB")
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in answer["seconds"].items())
    off = [each["segment"] for each in answer["segments"] if each["status"] == "deviates"]
    print(f"of the check's own: {parts}; deviates: {', '.join(off) or 'nothing'}")
    slow = sorted(answer["segments"], key=lambda each: -each["seconds"])[:5]
    print("most: " + ", ".join(f"{each['segment']} {each['seconds']:.1f} s" for each in slow))
    print("\n".join(answer["notes"]))
    print(
        f"beyond the script: {checked.seconds - alone.seconds:.1f} s, {checked.seconds / alone.seconds:.2f} times its time; "
        f"processor {checked.cpu - alone.cpu:.1f} s, {checked.cpu / alone.cpu:.2f} times"
    )


def _run(argv: list[str], threads: int) -> Cost:
    """Return what a program took. Raises RuntimeError where it fails."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    started = time.monotonic()
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    said = process.stdout.read()
    # also counts the processes that it waited for
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(argv)}: ended with status {process.returncode}")
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, said)


if __name__ == "__main__":
    run_main(main)
