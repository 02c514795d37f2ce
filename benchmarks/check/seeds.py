"""How much of its tolerance a healthy segment uses, over many seeds.

    python -m benchmarks.check.seeds [--seeds 200] [--seconds 600] [--out benchmarks/check/results/seeds.csv]

Seed after seed a healthy script runs under the check, with the settings by turns, until all were run or the time is
over. Prints the most that each segment used, and ends with status 1 where that is more than half.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.check.forks import Forks
from benchmarks.check.run import LIMIT, RESULTS, SCRIPT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_csv
from rlvr_debug.processes import run_main

# together they have every segment
SETTINGS = ("kl+iterations-2", "engine-token-truncate", "tools", "groups-of-2")
_HALF = 0.5


@dataclass(frozen=True)
class Used:
    """The largest share of its tolerance that a segment used: of how many seeds, and in which."""

    segment: str
    share: float
    seeds: int
    seed: int
    setting: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS / "seeds.csv")
    args = parser.parse_args()
    found: dict[str, Used] = {}
    end = time.monotonic() + args.seconds
    seed = 0
    with Forks(sys.executable) as forks:
        while seed < args.seeds and time.monotonic() < end:
            setting = SETTINGS[seed % len(SETTINGS)]
            for name, share in _shares(forks, setting, seed).items():
                found[name] = most(found.get(name), Used(name, share, 1, seed, setting))
            seed += 1
    rows = list(found.values())
    write_csv(args.out, Used, rows)
    for row in rows:
        print(
            f"{row.segment:28} {row.share:8.3g} of {row.seeds} seeds, in {row.seed} {row.setting}"
        )
    print(f"{seed} seeds, at most {max(row.share for row in rows):.3g} of a tolerance")
    if any(row.share > _HALF for row in rows):
        sys.exit(1)


def most(before: Used | None, now: Used) -> Used:
    """Return the one that used more, with the seeds of both."""
    if before is None:
        return now
    used = max(before, now, key=lambda each: each.share)
    return Used(used.segment, used.share, before.seeds + now.seeds, used.seed, used.setting)


def _shares(forks: Forks, setting: str, seed: int) -> Mapping[str, float]:
    """Return by segment what a healthy script uses, of those that were seen."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = [str(SCRIPT), "--setting", setting, "--seed", str(seed)]
        _, said = forks.run(words, folder, LIMIT)
        if not (folder / "answer.json").is_file():
            raise InputError(f"{setting}, seed {seed}: {(said.strip().splitlines() or [''])[-1]}")
        report: Mapping[str, Any] = read_json(folder / "answer.json")
    seen = [each for each in report["segments"] if each["status"] in ("agrees", "deviates")]
    return {
        each["segment"]: float("inf") if each["share"] is None else float(each["share"])
        for each in seen
    }


if __name__ == "__main__":
    run_main(main)
