from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.mid_run import STUDIES, compared
from rlvr_debug.checkout import ROOT
from rlvr_debug.verdicts.rule import Bar
from rlvr_debug.verdicts.sequential import looked

BAR = looked(Bar.of(0.05, 0.1))


def test_training_reward_of_the_first_half_would_have_stopped_no_committed_study() -> None:
    table = pd.concat([compared(ROOT / name, BAR) for name in STUDIES])
    table["ratio"] = table["p_training"] / table["asked"]
    assert (table["ratio"] > 1).all()
    closest = table.sort_values("ratio").iloc[0]
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    figures = f"{closest['p_training']:.2g} where {closest['asked']:.2g} is asked"
    assert figures in " ".join(page.split())


def test_a_reward_that_falls_by_as_much_on_every_seed_is_told_at_two_seeds(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paired by seed, whatever a seed's own level; held-out reward, whose seeds are not paired, is not told."""
    results = tmp_path_factory.mktemp("study")
    (results / "tables").mkdir()
    rng = np.random.default_rng(0)
    level = [0.2, 0.8, 0.5]
    arms = {
        "case": ("case", 0.3),
        "control": ("control", 0.0),
        "a": ("alone", 0.3),
        "b": ("alone", 0.0),
    }
    curves, runs = [], []
    for arm, (design, drop) in arms.items():
        for seed in range(3):
            noise = rng.normal(0, 1e-6)
            runs.append((arm, design, seed, arm, level[seed] - drop))
            curves += [
                (arm, seed, step, level[seed] - drop * (step < 3) + noise) for step in range(5)
            ]
    pd.DataFrame(runs, columns=["arm", "design", "seed", "trained_as", "gain"]).to_csv(
        results / "tables" / "runs.csv"
    )
    pd.DataFrame(curves, columns=["arm", "seed", "step", "reward"]).to_csv(
        results / "tables" / "curves.csv"
    )
    monkeypatch.setattr("benchmarks.mid_run.ROOT", results.parent)
    table = compared(results, BAR)
    told = dict(
        zip(table["arm"] + table["seeds"].astype(str), table.to_dict("records"), strict=True)
    )
    assert told["a2"]["p_training"] < told["a2"]["asked"]
    assert told["a2"]["p_heldout"] > 0.05
    assert min(told["b2"]["p_training"], told["b3"]["p_training"]) > 0.05
