"""Whole default studies on seeds of their own: whether each validates all true causes, and no innocent one.

    python -m benchmarks.default_studies [--studies 10] [--first 100] [--cores 2]

Each runs through the workflow in studies/default-<first seed>; one that is there is not run again. Writes a row per
study and hypothesis to benchmarks/default_studies.csv. A true cause is one that has a variant which the case is made of.
"""

from __future__ import annotations

import argparse

import pandas as pd
import yaml
from scipy.stats import binomtest

from rlvr_debug.causes import cause_of
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_table, write_text
from rlvr_debug.processes import run_main
from rlvr_debug.study.params import load_params
from rlvr_debug.study.running import run_study

APART = 100  # seeds between the first ones of two studies
_TABLE = ROOT / "benchmarks" / "default_studies.csv"
_KEPT = ("hypothesis", "kind", "status", "confidence", "effect", "ci_low", "ci_high")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--first", type=int, default=APART, help="the first study's first seed")
    parser.add_argument("--cores", default="2")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml")
    true = {cause_of(fault) for fault in params.cases[params.case].faults}
    found = []
    for seed in range(args.first, args.first + args.studies * APART, APART):
        table = _study(seed, args.cores)
        found.append(table)
        write_text(_TABLE, pd.concat(found).to_csv(index=False, lineterminator="\n"))
        trained = table["trainings"].iloc[0]
        print(f"seeds from {seed}: {_words(table)}; {trained} trainings", flush=True)
    right = sum(_validated(table) == true for table in found)
    innocent = sum(bool(_validated(table) - true) for table in found)
    low = binomtest(right, len(found), alternative="greater").proportion_ci().low
    mean = sum(table["trainings"].iloc[0] for table in found) / len(found)
    print(
        f"{right} of {len(found)} validate {' and '.join(sorted(true))} and nothing else (at least {low:.0%} do, at 95 %, "
        f"Clopper-Pearson); {innocent} blame an innocent; {mean:.1f} trainings on average"
    )


def _study(seed: int, cores: str) -> pd.DataFrame:
    """Run the default study with this seed and those after it. Return its verdicts, with how many runs were trained."""
    name = f"default-{seed}"
    folder = ROOT / "studies" / name
    write_text(folder / "overlay.yaml", yaml.safe_dump({"study": name, "first_seed": seed}))
    if run_study(folder / "overlay.yaml", cores, steps=lambda done, of: None):
        raise InputError(f"study {name}: it did not end; the same command takes it up again")
    tables = folder / "results" / "tables"
    runs, verdicts = read_table(tables / "runs.csv"), read_table(tables / "verdicts.csv")
    trained = int((runs["arm"] == runs["trained_as"]).sum())
    return verdicts[list(_KEPT)].assign(first_seed=seed, trainings=trained)


def _validated(table: pd.DataFrame) -> set[str]:
    causes = table[(table["kind"] == "cause") & (table["status"] == "validated")]
    return set(causes["hypothesis"])


def _words(table: pd.DataFrame) -> str:
    shown = table[table["kind"] == "cause"]
    return ", ".join(f"{row.hypothesis} {row.status}" for row in shown.itertuples())


if __name__ == "__main__":
    run_main(main)
