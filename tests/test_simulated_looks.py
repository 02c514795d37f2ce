from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import benchmarks.simulate_looks as simulation
from benchmarks.simulate_looks import World, draw, layout_of, rates, worlds
from rlvr_debug.checkout import ROOT
from rlvr_debug.verdicts.rule import ABSENT, PRESENT, Bar
from rlvr_debug.verdicts.sequential import looked

BAR = Bar.of(0.05, 0.1)


@pytest.mark.parametrize(
    ("world", "least"),
    [(World("one cause", 8, 0.2), 0.95), (World("two that hurt together", 4, 0.2), 0.9)],
    ids=str,
)
def test_looks_find_what_the_fixed_design_finds_with_fewer_runs_and_blame_no_innocent(
    world: World, least: float
) -> None:
    study = draw(world, 300, np.random.default_rng(0))
    looks, fixed = study.looked_at(BAR), study.fixed()
    found = rates(study, looks, looked(BAR))
    assert found["found"] > least
    assert found["false"] < 0.02
    assert found["wrongly_cleared"] < 0.02
    assert found["runs"] < 0.9 * fixed.sum(-1).mean()


def test_a_fixed_design_is_as_sure_as_looks_with_two_more_seeds_and_not_before() -> None:
    study = draw(World("one cause", 8, 0.15), 300, np.random.default_rng(0))
    fixed, surer = (rates(study, study.fixed(more), BAR) for more in (0, simulation.SURER))
    looks = rates(study, study.looked_at(BAR), looked(BAR))
    assert fixed["found"] < 0.85 < 0.9 < min(surer["found"], looks["found"])
    assert looks["runs"] < 0.6 * surer["runs"]


def test_a_study_without_a_failure_ends_early_and_validates_nothing() -> None:
    study = draw(World("two that compensate", 8, 0.2), 300, np.random.default_rng(0))
    assert not study.causes.any()
    found = rates(study, study.looked_at(BAR), looked(BAR))
    assert found["false"] < 0.02
    assert found["runs"] < 22


def test_a_study_of_thirty_arms_has_the_hypotheses_of_the_default_study_over_and_over() -> None:
    layout, part = layout_of(30)
    assert list(layout.owner[:8]) == [0, 0, 1, 1, 1, 1, 2, 3]
    assert list(part[:8]) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert (len(layout.owner), layout.hypotheses) == (30, 14)
    assert list(layout_of(1)[0].alone) == [False]


@pytest.mark.parametrize(
    ("truth", "case", "alone", "repair", "causes"),
    [
        ("one cause", -0.2, -0.2, 0.2, 1),
        ("two causes", -0.4, -0.2, 0.2, 2),
        ("two, each enough", -0.2, -0.2, 0.0, 2),
        ("two that compensate", 0.0, -0.2, -0.2, 0),
        ("two that hurt together", -0.2, 0.0, 0.2, 2),
    ],
)
def test_each_truth_is_what_the_page_says(
    truth: str,
    case: float,
    alone: float,
    repair: float,
    causes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case: beside the control; alone and repair: of a defect's arms, beside the control and the case."""
    monkeypatch.setattr(simulation, "SPREADS", {True: (0.0, 0.0), False: (0.0, 0.0)})
    study = draw(World(truth, 8, 0.2, sees=False, blames=1), 200, np.random.default_rng(0))
    gains = study.gains[:, :, 0, 0]
    effects = gains[:, 2:] - np.where(study.layout.alone, gains[:, [1]], gains[:, [0]])
    assert gains[:, 0] - gains[:, 1] == pytest.approx(np.full(200, case))
    assert (study.causes.sum(-1) == causes).all()
    assert (study.mechanism == np.where(study.causes, ABSENT, PRESENT)).all()
    for is_alone, expected in ((True, alone), (False, repair)):
        seen = effects[:, study.layout.alone == is_alone]
        moved = seen[np.abs(seen) > 1e-9]
        assert moved == pytest.approx(np.full(moved.shape, expected))
        assert moved.size or not expected
    innocent = ~study.causes[:, study.layout.owner]
    assert truth == "two that compensate" or (np.abs(effects[innocent]) < 1e-9).all()


def test_rows_have_one_to_thirty_arms_and_all_truths_and_noises() -> None:
    rows = worlds()
    assert len(set(rows)) == len(rows)
    assert {row.arms for row in rows} == {1, 2, 4, 8, 16, 30}
    assert {(row.truth, row.noise) for row in rows} == {
        (truth, noise)
        for truth in simulation.COSTS
        for noise in ("by learning", "measured", "wide")
    }


def test_a_rerun_writes_the_same_files_between_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "verdicts.md"
    page.write_text((ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["simulate_looks", "--studies", "20", "--out", str(tmp_path)])
    monkeypatch.setattr(simulation, "worlds", lambda: worlds()[1:3])

    def written() -> dict[str, str]:
        simulation.main()
        return {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}

    first = written()
    assert set(first) == {"looks.csv", "verdicts.md"}
    assert "20 studies a row" in " ".join(first["verdicts.md"].split())
    assert written() == first


def test_the_page_shows_the_figures_of_its_csv() -> None:
    table = pd.read_csv(ROOT / "docs" / "looks.csv")
    assert len(table) == len(worlds())
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    shown = page.partition(simulation.MARKS[0])[2].partition(simulation.MARKS[1])[0]
    assert simulation.markdown(table) in shown
    assert simulation.summary(table, 4000) in " ".join(shown.split())
