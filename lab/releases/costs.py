"""Train the tiny model with each defect of defects.yaml planted in our trainer, and without: write what it costs.

    python -m lab.releases.costs

Runs are those of `make bench-faults` on GSM8K, with seeds of their own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from benchmarks.faults import planted
from benchmarks.faults.case import Task, Told
from benchmarks.faults.run import Place, run
from lab.releases.defects import COSTS, Defect, defects
from rlvr_debug.files import write_text
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.processes import run_main
from rlvr_debug.verdicts.statistics import welch

SEEDS = range(4000, 4005)
planted.__path__.append(str(Path(__file__).with_name("planted")))


def cost_rows(wanted: list[Defect]) -> Iterator[dict[str, Any]]:
    """Yield what is gained in held-out reward without each defect and with it, and the difference with its 95 % interval."""
    known: dict[str, list[float]] = {}
    untrained = mean(_rewards(Told(Task("gsm8k"), (), {"learning_rate": 0.0}, {}, 0)))
    for defect in wanted:
        pair = _told(defect, planted=False), _told(defect, planted=True)
        for told in pair:
            known[told.digest] = known.get(told.digest) or _rewards(told)
        healthy, broken = (known[told.digest] for told in pair)
        cost = welch(healthy, broken, 0.05)
        gains: dict[str, Any] = {
            "without": mean(healthy) - untrained,
            "with": mean(broken) - untrained,
        }
        numbers = {**gains, "cost": cost.value, "low": cost.low, "high": cost.high}
        rounded = {name: f"{float(number):.4f}" for name, number in numbers.items()}
        yield {"defect": defect.place, "seeds": len(SEEDS), **rounded}


def _told(defect: Defect, *, planted: bool) -> Told:
    broken = defect.planted if planted else {}
    task = Task("gsm8k", defect.asked)
    return Told(task, tuple(broken.get("faults", ())), broken.get("training", {}), {}, 0)


def _rewards(told: Told) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(told, Path(folder))
        return [run(place, seed, None)["sampled"] for seed in SEEDS]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    one_thread()
    rows = []
    for row in cost_rows([each for each in defects() if each.planted]):
        print(row, flush=True)
        rows.append(row)
    write_text(COSTS, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    run_main(main)
