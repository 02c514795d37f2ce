from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.mid_run import committed, compared
from rlvr_debug.checkout import ROOT
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import looked

BAR = looked(Bar.of(0.05, 0.1))


def test_training_reward_of_the_first_half_would_have_stopped_no_committed_study() -> None:
    table = committed(BAR)
    table["ratio"] = table["p"] / table["asked"]
    assert (table["ratio"] > 1).all()
    closest = table.sort_values("ratio").iloc[0]
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    figures = f"{closest['p']:.2g} where {closest['asked']:.2g} is asked"
    assert figures in " ".join(page.split())


def test_a_reward_that_falls_by_as_much_on_every_seed_is_told_at_two_seeds() -> None:
    """It is paired by seed, whatever a seed's own level, and of the first half of the steps alone."""
    rng = np.random.default_rng(0)
    level = [0.2, 0.8, 0.5]
    arms = {
        "case": ("case", 0.3),
        "control": ("control", 0),
        "a": ("alone", 0.3),
        "b": ("alone", 0),
    }
    curves, runs = [], []
    for arm, (design, drop) in arms.items():
        for seed in range(3):
            noise = rng.normal(0, 1e-6)
            runs.append((arm, design, seed, arm))
            curves += [
                (
                    arm,
                    seed,
                    step,
                    level[seed] - drop * (step < 3) + noise + (step > 2) * rng.random(),
                )
                for step in range(5)
            ]
    table = compared(
        pd.DataFrame(curves, columns=["arm", "seed", "step", "reward"]),
        pd.DataFrame(runs, columns=["arm", "design", "seed", "trained_as"]),
        BAR,
    )
    named = table["arm"] + table["seeds"].astype(str)
    told = dict(zip(named, table.to_dict("records"), strict=True))
    assert list(told) == ["a2", "b2", "a3", "b3"]
    assert told["a2"]["p"] < told["a2"]["asked"]
    assert min(told["b2"]["p"], told["b3"]["p"]) > 0.05
