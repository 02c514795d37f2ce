from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulate_verdicts import (
    Shape,
    Simulated,
    World,
    main,
    read_spreads,
    simulate,
    study_shape,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.rule import (
    ABSENT,
    PRESENT,
    Bar,
)

ALPHA, MINIMUM = 0.05, 0.1
BAR = Bar.of(ALPHA, MINIMUM)

# --- simulated studies


def simulated(spread: float, effect: float = 0.0, **more: Any) -> tuple[Shape, Simulated]:
    """Of the default's shape; every mechanism is there unless told otherwise."""
    shape = study_shape(load_params(ROOT / "params.yaml"))
    rng = np.random.default_rng(0)
    residuals = spread * np.linalg.cholesky([[1, 0.5], [0.5, 1]]) @ rng.normal(size=(2, 1000))
    names = ("case", "control", *shape.names)
    settings: dict[str, Any] = {
        "effect": effect,
        "seeds": 3,
        "studies": 2000,
        "noise": "normal",
        "mechanism": PRESENT,
        "alpha": ALPHA,
        "minimum": MINIMUM,
    }
    world = World(**{**settings, **more})
    return shape, simulate(shape, dict.fromkeys(names, residuals.T), world, rng)


@pytest.mark.parametrize("noise", ["normal", "residuals"])
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.4])
def test_arms_that_do_nothing_are_seldom_taken_for_a_cause(
    spread: float, seeds: int, noise: str
) -> None:
    """Every mechanism is there, no arm has an effect: at most alpha of all studies may claim one."""
    _, found = simulated(spread, seeds=seeds, noise=noise)
    error = 2 * math.sqrt(ALPHA * (1 - ALPHA) / 2000)
    assert (found.statuses == "validated").any(-1).mean() <= ALPHA + error
    assert found.effects.significant.any(-1).mean() <= ALPHA + error
    assert 0.94 <= found.covered.mean() <= 0.97


def test_a_real_cause_is_found_more_often_with_more_seeds_and_never_without_mechanism() -> None:
    def power(seeds: int, mechanism: int) -> float:
        shape, found = simulated(0.03, effect=0.3, seeds=seeds, mechanism=mechanism)
        owner = [
            next(h for h, own in enumerate(shape.members) if arm in own) for arm in found.planted
        ]
        return float((found.statuses[np.arange(len(owner)), owner] == "validated").mean())

    assert 0.5 < power(3, PRESENT) < power(5, PRESENT)
    assert power(5, ABSENT) == 0


def test_a_rerun_of_the_simulation_writes_the_same_files_between_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, measured = tmp_path / "verdicts.md", tmp_path / "spreads.csv"
    page.write_text((ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), encoding="utf-8")
    rows = [
        f"{arm},{seed},{0.01 * seed},{0.02 * (seed % 2)}"
        for arm in ("case", "control", "attention-mask")
        for seed in range(4)
    ]
    measured.write_text("\n".join(["arm,seed,gain,gain_greedy", *rows]), encoding="utf-8")
    settings = ["--spreads", str(measured), "--out", str(tmp_path), "--studies", "20"]
    monkeypatch.setattr("sys.argv", ["simulate_verdicts", *settings])

    def written() -> dict[str, str]:
        main()
        return {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}

    first = written()
    assert set(first) == {"simulation.csv", "simulation.svg", "verdicts.md", "spreads.csv"}
    said = " ".join(first["verdicts.md"].split())
    for part in ("20 studies a row", "(simulation.svg)", "given the widest spread: "):
        assert part in said
    assert written() == first


def test_a_spread_of_one_seed_is_an_error_that_names_the_arm(tmp_path: Path) -> None:
    path = tmp_path / "spreads.csv"
    path.write_text("arm,seed,gain,gain_greedy\ncase,0,0.1,0.1\n", encoding="utf-8")
    with pytest.raises(InputError, match="arm 'case' has 1 seeds"):
        read_spreads(path)
