"""Whether training reward in mid-run would stop a study sooner than held-out reward does, in the committed results.

    python -m benchmarks.mid_run [results ...]

Runs of a seed share their rows and first rollouts, so that training reward of the first half of the steps can be paired
by seed. Prints of each arm alone the p value of that reward and of held-out reward at two and
at three seeds, both with moderated spreads, beside what the look there asks of the smallest p of so many arms.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from rlvr_debug.checkout import ROOT
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.moderation import moves, priors, squeezed
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import looked
from rlvr_debug.verdicts.statistics import Sample, mean_of, sample, welch_p

__all__ = ["compared", "main"]

STUDIES = ("results", "results/full", "results/releases/verifiers-0.1.3")


def compared(results: Path, bar: Bar) -> pd.DataFrame:
    """Return a row per arm alone and number of seeds, of a study's tables."""
    curves, runs = (pd.read_csv(results / "tables" / f"{name}.csv") for name in ("curves", "runs"))
    half = curves[curves["step"] <= curves["step"].max() / 2]
    reward = half.groupby(["arm", "seed"])["reward"].mean().unstack()
    gain = runs.pivot(index="arm", columns="seed", values="gain")
    of_cause = runs[runs["design"].isin(["alone", "repair"])]
    alone = list(of_cause.loc[of_cause["design"] == "alone", "arm"].unique())
    tables = []
    for seeds in (2, 3):
        first = list(range(seeds))
        gains = _moderated(gain.loc[["control", *alone]][first], bar.minimum)
        row = {
            "study": results.relative_to(ROOT).as_posix(),
            "arm": alone,
            "seeds": seeds,
            "p_training": mean_of(
                _moderated((reward.loc["control"] - reward.loc[alone])[first], 0), bar.alpha
            ).p,
            "p_heldout": welch_p(_at(gains, slice(0, 1)), _at(gains, slice(1, None))),
            "asked": bar.alpha * float(bar.share(seeds)) / of_cause["trained_as"].nunique(),
        }
        tables.append(pd.DataFrame(row))
    return pd.concat(tables)


def _moderated(values: pd.DataFrame, minimum: float) -> Sample:
    """values: arms by seeds, of which those that are far from 0 share one prior, and the others another."""
    found = sample(values.to_numpy(float))
    found = Sample(found.mean, found.sd, np.full(len(values), values.shape[1]))
    return squeezed(found, priors(found, moves(found.mean, minimum)))


def _at(found: Sample, places: slice) -> Sample:
    return Sample(found.mean[places], found.sd[places], found.seeds[places], found.degrees[places])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", nargs="*", type=Path, default=[ROOT / name for name in STUDIES])
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml")
    bar = looked(Bar.of(params.verdicts.alpha, params.verdicts.minimum_effect))
    table = pd.concat([compared(each.resolve(), bar) for each in args.results])
    print(table.to_string(index=False, float_format="{:.2g}".format))


if __name__ == "__main__":
    main()
