"""Whether training reward in mid-run would stop a study at its first looks, in the committed results.

    python -m benchmarks.mid_run

Runs of a seed share their rows and first rollouts, so that training reward of the first half of the steps can be paired
by seed. Prints of each arm alone its p value at two and at three seeds, with moderated spreads, beside what the look
there asks of the smallest p of so many arms.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from rlvr_debug.checkout import ROOT
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.moderation import priors, squeezed
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import looked
from rlvr_debug.verdicts.statistics import Sample, mean_of, sample

__all__ = ["committed", "compared", "main"]

STUDIES = ("results", "results/full", "results/releases/verifiers-0.1.3")


def compared(curves: pd.DataFrame, runs: pd.DataFrame, bar: Bar) -> pd.DataFrame:
    """Return a row per arm alone and number of seeds. curves, runs: a study's tables of these names."""
    half = curves[curves["step"] <= curves["step"].max() / 2]
    reward = half.groupby(["arm", "seed"])["reward"].mean().unstack()
    of_cause = runs[runs["design"].isin(["alone", "repair"])]
    alone = list(of_cause.loc[of_cause["design"] == "alone", "arm"].unique())
    lost = (reward.loc["control"] - reward.loc[alone]).to_numpy(float)
    asked = bar.alpha / of_cause["trained_as"].nunique()
    tables = []
    for seeds in (2, 3):
        found = sample(lost[:, :seeds])
        found = Sample(found.mean, found.sd, np.full(len(alone), seeds))
        row = {
            "arm": alone,
            "seeds": seeds,
            "p": mean_of(squeezed(found, priors(found, True)), bar.alpha).p,
            "asked": asked * float(bar.share(seeds)),
        }
        tables.append(pd.DataFrame(row))
    return pd.concat(tables)


def committed(bar: Bar) -> pd.DataFrame:
    """Return the rows of all STUDIES."""
    tables = {}
    for study in STUDIES:
        folder = ROOT / study / "tables"
        curves, runs = (pd.read_csv(folder / f"{name}.csv") for name in ("curves", "runs"))
        tables[study] = compared(curves, runs, bar)
    return pd.concat(tables, names=["study"]).reset_index("study")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.parse_args()
    params = load_params(ROOT / "params.yaml")
    bar = looked(Bar.of(params.verdicts.alpha, params.verdicts.minimum_effect))
    print(committed(bar).to_string(index=False, float_format="{:.2g}".format))


if __name__ == "__main__":
    main()
