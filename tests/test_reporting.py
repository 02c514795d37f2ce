import json
import math
import os
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import vl_convert

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text
from rlvr_debug.report.answer import answer
from rlvr_debug.report.charts import curves_chart, learning_chart, study_charts
from rlvr_debug.study.resolved import Study as Resolved
from rlvr_debug.study.resolved import resolve
from rlvr_debug.verdicts.tables import write_tables
from tests.made_up_study import (
    AT_ONCE,
    CAUSE_FOUND,
    LONG,
    PARAMS,
    REPORT_SETTINGS,
    SETTINGS,
    Study,
)
from tests.shared import ran


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study with tables and charts; not to be changed."""
    study = Study(tmp_path_factory.mktemp("results"), CAUSE_FOUND)
    study.tables()
    study.charts()
    return study


def files(folder: Path, *patterns: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    }


# --- tables


def test_a_study_without_hypotheses_has_a_table_of_no_verdicts_and_a_report(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    alone = [run for run in study.runs if not run.hypothesis]
    write_tables(alone, {}, {}, AT_ONCE, SETTINGS, study.results)
    study.charts()
    assert study.read()["verdicts"].empty
    assert "<title>" in study.report()


def test_every_run_has_a_row_with_the_columns_that_people_rely_on(finished: Study) -> None:
    table = finished.read()["runs"]
    assert set(table) >= {"learning_rate", "temperature"}
    assert len(table) == len(finished.runs) == 9 * 3
    row = table[(table["arm"] == "attention-mask") & (table["seed"] == 2)].iloc[0].to_dict()
    assert (row["hypothesis"], row["environment"]) == ("hidden-context", "musique")
    assert (row["steps"], row["sampled_tokens"], row["trained_tokens"]) == (3, 300, 270)
    assert row["rollouts"] == 3 * PARAMS.training.prompts_per_step * PARAMS.training.group_size
    for decoding in ("", "_greedy"):
        assert row[f"baseline_reward{decoding}"] == 0.1
        assert row[f"heldout_reward{decoding}"] == 0.52
        assert row[f"gain{decoding}"] == pytest.approx(0.42)
    assert row["changes"] == "without attention-from-loss-mask"
    assert (row["training_reward_last"], row["kl_max"], row["grad_norm_max"]) == (0.52, 0.03, 1.0)


def test_what_an_arm_changes_is_told_against_the_run_that_it_is_compared_with(
    finished: Study,
) -> None:
    arms = finished.read()["arms"].set_index("arm")["changes"]
    assert arms["attention-mask-alone"] == "with attention-from-loss-mask"
    assert arms["control"] == "without attention-from-loss-mask; without eos-not-trained"
    assert arms[LONG] == "kl_beta 0.04 → 0.0"
    assert arms["gsm8k"] == "environment gsm8k"


def test_every_hypothesis_has_a_row_with_the_columns_that_people_rely_on(finished: Study) -> None:
    table = finished.read()["verdicts"].set_index("hypothesis")
    assert set(table) >= {"kind", "confidence", "ci_low", "ci_high", "evidence"}
    assert table["status"].to_dict() == {
        "hidden-context": "validated",
        "kl-penalty": "invalidated",
        "library-functionality": "invalidated",
        "lora-weight-sync": "pending",
    }
    assert table.loc["hidden-context", "effect"] == pytest.approx(0.4)
    assert list(table["seeds"]) == [3, 3, 3, 0]


def test_the_metrics_are_json_and_tell_what_the_tables_do(finished: Study) -> None:
    text = (finished.results / "metrics.json").read_text(encoding="utf-8")
    metrics = json.loads(text, parse_constant=pytest.fail)
    assert metrics["verdicts"]["hidden-context"]["status"] == "validated"
    assert metrics["verdicts"]["hidden-context"]["effect"] == pytest.approx(0.4)
    assert metrics["verdicts"]["lora-weight-sync"] == {"status": "pending"}
    assert metrics["arms"]["control"]["gain"] == pytest.approx(0.41)
    assert metrics["baseline"]["gsm8k"]["reward"] == 0.1


def test_tables_and_charts_are_the_same_bytes_when_written_again(finished: Study) -> None:
    patterns = ("tables/*", "charts/*", "metrics.json")
    before = files(finished.results, *patterns)
    assert len(before) == 4 + len(study_charts()) + 1
    finished.tables()
    finished.charts()
    assert files(finished.results, *patterns) == before


RESULTS = [
    *("check.json", "baseline/gsm8k.json", "runs/musique/case/1/heldout.json"),
    "runs/musique/case/1/metrics.jsonl",
]


@pytest.mark.parametrize(
    ("name", "kept"),
    # nothing is there, an empty file, one cut within a line, and one cut between lines
    [*((name, kept) for name in RESULTS for kept in (None, 0, -10)), (RESULTS[-1], "lines")],
)
def test_a_damaged_result_file_is_named_and_no_table_is_written(
    name: str, kept: int | str | None, tmp_path: Path
) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if kept is not None:
        lines = b"".join(whole.splitlines(keepends=True)[:-1])
        (tmp_path / name).write_bytes(lines if isinstance(kept, str) else whole[:kept])
    with pytest.raises(InputError) as caught:
        study.tables()
    assert str(caught.value).startswith(f"{tmp_path / name}:")
    assert "\n" not in str(caught.value)
    assert files(tmp_path, "tables/*", "metrics.json", "**/*.tmp") == {}


def test_a_study_of_one_seed_and_one_step_goes_through_and_claims_nothing(tmp_path: Path) -> None:
    """No spread, no slope: every interval is infinite, which neither JSON nor a chart can show."""
    study = Study(tmp_path, CAUSE_FOUND, seeds=[0], steps=1)
    tables = study.tables()
    assert not {"validated", "partially_validated"} & set(tables["verdicts"]["status"])
    assert tables["verdicts"].set_index("hypothesis").loc["hidden-context", "ci_high"] == math.inf
    json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    for svg in study.charts().values():
        ET.fromstring(svg)
    page = study.report()
    assert "unclear" in page
    assert not re.search(r"[+-](inf|nan)", page[: page.index('id="evidence"')])


# --- charts


def texts(svg: str) -> set[str]:
    return {"".join(node.itertext()) for node in ET.fromstring(svg).iter() if "text" in node.tag}


@pytest.mark.parametrize("chart", ["learning", "effects"])
def test_a_chart_is_xml_and_names_every_arm_in_full(chart: str, finished: Study) -> None:
    shown = texts((finished.results / "charts" / f"{chart}.svg").read_text(encoding="utf-8"))
    arms = finished.read()["arms"].set_index("arm")
    expected = set(arms.index) if chart == "learning" else set(arms.dropna(subset=["effect"]).index)
    assert LONG in expected
    assert expected <= shown


def test_a_chart_of_a_healthy_case_has_no_panel_of_single_defects(tmp_path: Path) -> None:
    study = Study(tmp_path, CAUSE_FOUND)
    study.runs = [run for run in study.runs if run.design != "alone"]
    study.tables()
    shown = texts(study.charts()["effects"])
    assert "control" in shown
    assert not any("alone" in text for text in shown)


def test_a_long_run_is_thinned_and_keeps_its_last_step() -> None:
    rows = [("case", "case", seed, step, 0.5, 0.1) for seed in (0, 1) for step in range(1, 1002)]
    curves = pd.DataFrame(rows, columns=["arm", "design", "seed", "step", "reward", "kl"])
    charts = [
        learning_chart({"curves": curves, "arms": pd.DataFrame({"arm": ["case"]})}, 0.1),
        *(curves_chart(curves, {"case": "it"}, name, name, (9, 9)) for name in ("reward", "kl")),
    ]
    for chart in charts:
        [drawn] = [rows for rows in chart.to_dict()["datasets"].values() if len(rows) > 1]
        steps = [row["step"] for row in drawn]
        assert 40 < len(steps) <= 80
        assert max(steps) == 1001


# --- phases, and what the record says


def gated(folder: Path, rewards: Mapping[str, float]) -> tuple[Study, Resolved]:
    """Results of all runs of a study of the fixed design, and that study."""
    made = Study(folder, rewards)
    fixed = replace(made.params, design="fixed", phases="gated")
    return made, replace(resolve(fixed, ROOT), results=folder)


def test_a_gate_that_found_a_cause_leaves_later_phases_out_and_says_so(tmp_path: Path) -> None:
    made, study = gated(tmp_path, CAUSE_FOUND)
    first = study.last_look(tmp_path)
    assert (first.phase, first.more) == (1, True)
    for run in study.runs:
        if run not in study.chosen(first):
            (made.folder(run) / "heldout.json").unlink()  # never run
    last = study.look_at(first)
    assert (last.phase, last.more, last.causes) == (1, False, ("hidden-context",))
    assert study.chosen(last) == study.chosen(first)
    write_tables(study.chosen(last), study.phases, {}, last, SETTINGS, tmp_path)
    verdicts = made.read()["verdicts"].set_index("hypothesis")
    assert verdicts.loc["kl-penalty", "status"] == "pending"
    why = "not run: phase 1 found a cause (hidden-context)"
    assert verdicts.loc["kl-penalty", "evidence"] == why
    assert verdicts.loc["hidden-context", "status"] == "validated"


def test_a_gate_without_a_cause_opens_the_next_phase(tmp_path: Path) -> None:
    made, study = gated(tmp_path, dict.fromkeys(CAUSE_FOUND, 0.1))
    looks = [study.last_look(tmp_path)]
    while looks[-1].more:
        looks.append(study.look_at(looks[-1]))
    assert [look.phase for look in looks] == [1, 2, 3, 3]
    counts = [len(study.chosen(look)) for look in looks]
    assert counts[0] < counts[1] < counts[2] == counts[3] == len(study.runs)
    write_tables(study.chosen(looks[-1]), study.phases, {}, looks[-1], SETTINGS, tmp_path)
    assert (made.read()["verdicts"]["status"] != "pending").sum() == 3


# --- the answer


def test_a_study_of_one_hypothesis_is_told_in_the_singular(finished: Study) -> None:
    tables = finished.read()
    alone = tables["verdicts"].head(1).assign(status="inconclusive", further_seeds=1.0)
    found = answer({**tables, "verdicts": alone}, REPORT_SETTINGS)
    assert found.sure == ("Of 1 hypothesis: 1 inconclusive. 1 further seed per arm would decide.",)


# --- DVC's plots of the curves


@pytest.mark.heavy
def test_dvc_draws_a_line_per_arm_the_mean_over_seeds(tmp_path: Path) -> None:
    def dvc(*arguments: str) -> str:
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
        done = ran([sys.executable, "-m", "dvc", *arguments], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # of seed 1 the reward is higher by 0.2
    rewards = {("case", 0): 0.1, ("case", 1): 0.3, ("control", 0): 0.5, ("control", 1): 0.7}
    curves = [
        f"{arm},case,musique,{seed},{step},{reward},0,1"
        for (arm, seed), reward in rewards.items()
        for step in (1, 2, 3)
    ]
    header = "arm,design,environment,seed,step,reward,kl,grad_norm"
    table = "results/tables/curves.csv"
    write_text(tmp_path / table, "\n".join([header, *curves, ""]))
    dvc("init", "--no-scm", "--quiet")
    shutil.copytree(ROOT / ".dvc" / "plots", tmp_path / ".dvc" / "plots")
    shutil.copy2(ROOT / "dvc.yaml", tmp_path)
    said = dvc("plots", "show", "--show-vega", table)
    assert "DVC_METRIC" not in said
    drawn = vl_convert.vegalite_to_svg(json.loads(said))
    assert all(f">{arm}</text>" in drawn for arm in ("case", "control"))
    # a line is labelled by its first point
    lines = re.findall(r'"step: 1; reward, mean over seeds: ([0-9.]+); rev: workspace"', drawn)
    assert sorted({round(float(reward), 6) for reward in lines}) == [0.2, 0.6]
