import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes import in_order
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_jsonl, write_text
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Measured, Rates, measured_runs, plan_text, planned, rates
from rlvr_debug.study.running import jobs_to_do

# a fixed design is planned without asking how many runs looks would choose
PARAMS = replace(load_params(ROOT / "params.yaml"), design="fixed")
RATES = Rates({"musique": 0.1, "gsm8k": 0.05}, 0.1, 1e6, "measured on 3 runs of study x")
OVERLAYS = [None, *sorted(ROOT.glob("studies/*.yaml")), *sorted(ROOT.glob("tests/studies/*.yaml"))]


def told(text: str, name: str) -> tuple[float, float]:
    """The two numbers of the row that begins with `name`."""
    [row] = [line for line in text.splitlines() if line.startswith(name)]
    whole, left = row.split()[-2:]
    return float(whole), float(left)


def training(**changes: Any) -> Params:
    return replace(PARAMS, training=replace(PARAMS.training, **changes))


def text_of(params: Params, to_do: Mapping[str, int], cores: int = 2, found: Rates = RATES) -> str:
    return plan_text(planned(params, to_do, cores, found, free=10**10))


# --- what was measured


class Results:
    """The results of a made-up study: 16 rollouts in 2 steps each, of 4 s together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def add(self, arm: str, environment: str = "musique", trained_as: str = "") -> Path:
        row = {"arm": arm, "environment": environment, "trained_as": trained_as or arm}
        self.rows.append({**row, "seed": 0, "steps": 2, "rollouts": 16})
        table = pd.DataFrame(self.rows).to_csv(index=False)
        write_text(self.folder / "tables" / "runs.csv", table)
        run = self.folder / "runs" / environment / arm / "0"
        write_jsonl(
            run / "timings.jsonl", ({"step": s, "update": 1.5, "sync": 0.5} for s in (1, 2))
        )
        write_text(run / "model.safetensors", "x" * 1000)
        return run


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_a_step_s_number_is_no_second_of_it_and_weights_with_two_names_are_there_once(
    results: Results,
) -> None:
    """An adapter's are in adapter/ too."""
    run = results.add("case")
    (run / "adapter").mkdir()
    (run / "adapter" / "adapter_model.safetensors").hardlink_to(run / "model.safetensors")
    size = 1000 + (run / "timings.jsonl").stat().st_size
    assert [*measured_runs(results.folder)] == [Measured("musique", 4 / 16, size)]


def test_seconds_of_a_whole_program_are_taken_as_they_are(results: Results) -> None:
    write_jsonl(results.add("case") / "timings.jsonl", [{"seconds": 32.0}])
    assert [run.seconds for run in measured_runs(results.folder)] == [2.0]


def test_timings_that_are_not_of_the_run_in_the_table_are_not_counted(results: Results) -> None:
    results.add("case")
    results.add("shared", trained_as="case")
    (results.add("gone") / "timings.jsonl").unlink()
    write_jsonl(results.add("longer") / "timings.jsonl", [{"step": 40, "update": 1.0}])
    write_jsonl(results.add("empty") / "timings.jsonl", [])
    assert len(list(measured_runs(results.folder))) == 1


def test_rates_are_of_each_environment_and_name_the_study_that_they_are_from(
    results: Results, tmp_path: Path
) -> None:
    results.add("case")
    write_jsonl(results.add("gsm8k", "gsm8k") / "timings.jsonl", [{"seconds": 1.6}])
    found = rates({"mine": tmp_path / "none", "default": results.folder}, tmp_path)
    assert found.seconds == {"gsm8k": 0.1, "musique": 0.25}
    assert found.usual == pytest.approx(0.175)
    assert found.source == "measured on 2 runs of study default"


def test_without_a_measured_run_the_plan_says_that_it_assumes(tmp_path: Path) -> None:
    found = rates({"default": tmp_path}, ROOT / "models" / "tiny")
    assert found.seconds == {}
    assert "since no run here was measured" in " ".join(text_of(PARAMS, {}, found=found).split())


# --- what is told


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name if path else "params")
def test_every_plan_fits_a_terminal(overlay: Path | None) -> None:
    text = text_of(load_params(ROOT / "params.yaml", overlay), {"train": 10**4})
    assert max(map(len, text.splitlines())) < 80


def test_runs_that_share_a_training_are_paid_for_once() -> None:
    every = list(runs(PARAMS))
    distinct = sum(run.arm == run.trained_as for run in every)
    assert distinct < len(every)
    text = text_of(PARAMS, {})
    assert f"= {len(every)} runs, {distinct} of them trained" in text
    assert told(text, "trainings") == (distinct, 0)


def test_cost_is_scaled_by_steps_and_rollouts() -> None:
    def hours(**changes: Any) -> float:
        return told(text_of(training(**changes), {}), "CPU hours")[0]

    usual, none = hours(), told(text_of(PARAMS, {}, found=Rates({}, 0, 0, "")), "CPU hours")[0]
    for change in ({"steps": 44}, {"prompts_per_step": 32}, {"group_size": 8}):
        assert hours(**change) - none == pytest.approx(2 * (usual - none), abs=0.02)


def test_what_is_left_costs_what_its_jobs_cost() -> None:
    text = text_of(PARAMS, {"train": 3, "evaluate_run": 3, "write_tables": 1})
    whole, left = told(text, "CPU hours")
    assert told(text, "trainings")[1] == 3
    assert 0 < left < whole / 10
    assert "Jobs not done yet: 3 train, 3 evaluate_run, 1 write_tables." in text.splitlines()
    many = text_of(PARAMS, {f"rule_{'x' * n}": n for n in range(1, 20)})
    assert not [
        line
        for line in many.splitlines()
        if line.split()[-1:] and line.split()[-1].isdigit() and "rule_" in line
    ]
    done = text_of(PARAMS, {})
    assert told(done, "CPU hours")[1] == told(done, "minutes")[1] == 0
    assert "Every job is done." in done


def test_many_cores_do_not_end_a_study_before_its_longest_training() -> None:
    minutes = [told(text_of(PARAMS, {}, cores), "minutes")[0] for cores in (1, 2, 10_000)]
    longest = 0.1 * 22 * 64 / 60
    assert minutes[0] == pytest.approx(2 * minutes[1], abs=0.2)
    assert minutes[2] == pytest.approx(longest, abs=0.1)


def test_json_has_no_hours_of_a_processor_where_the_text_has_none() -> None:
    for overlay in (None, ROOT / "studies" / "qwen2.5-7b.yaml"):
        found = planned(load_params(ROOT / "params.yaml", overlay), {"train": 3}, 2, RATES, 10**10)
        told = json.loads(json.dumps(asdict(found)))
        assert (told["whole"] is None) == ("CPU hours" not in plan_text(found)) == bool(overlay)
        assert bool(told["gpus"]) == bool(overlay)
        assert told["trainings_left"] == 3


def test_hypotheses_stand_in_the_order_of_their_tests_with_what_each_costs() -> None:
    params = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml")
    found = planned(params, {}, 2, RATES, free=10**10)
    by_slug = {each.hypothesis: each for each in found.hypotheses}
    assert list(by_slug) == in_order(params.arms)
    # of its arms one is the case, and trained for no hypothesis; the others on three seeds each
    first = by_slug["lora-weight-sync"]
    told = (first.number, first.priority, first.phase, first.trainings)
    assert told == ("H06", "critical", 1, 6)
    assert by_slug["kl-penalty"].after == ("advantage-scaling",)
    # gsm8k is trained for whichever needs it first
    assert (by_slug["library-functionality"].trainings, by_slug["multi-step"].trainings) == (3, 3)
    others = {run.name for run in runs(params) if not run.hypothesis}
    assert found.trainings == len(others) + sum(each.trainings for each in found.hypotheses)
    for each in found.hypotheses:
        assert each.whole is not None
        assert (each.whole.seconds > 0) == (each.trainings > 0)
    lines = plan_text(found).splitlines()
    [place] = [n for n, line in enumerate(lines) if "gradient-explosion" in line]
    assert lines[place].split()[:6] == ["3", "gradient-explosion", "H08", "(second)", "medium", "6"]
    assert lines[place + 1].strip() == "after advantage-scaling"


def test_a_plan_of_one_seed_or_of_gated_phases_says_what_that_means() -> None:
    plain = replace(PARAMS, seeds=(0, 1))
    for params, said in (
        (replace(plain, seeds=(0,)), "One seed decides nothing."),
        (replace(plain, phases="gated"), "Phases are gated"),
    ):
        assert said in text_of(params, {})
        assert said not in text_of(plain, {})


def test_a_hypothesis_that_the_trainer_has_no_experiment_for_is_told_why() -> None:
    params = replace(PARAMS, trainer="trl", case="healthy", phases="all")
    found = planned(params, {}, 2, RATES, free=10**10)
    by_slug = {each.hypothesis: each for each in found.hypotheses}
    assert "no counterpart for attention-mask: stage" in by_slug["hidden-context"].missing
    assert by_slug["kl-penalty"].missing == by_slug["library-functionality"].missing == ""
    lines = plan_text(found).splitlines()
    [place] = [n for n, line in enumerate(lines) if " hidden-context " in line]
    assert lines[place + 1] == "        no experiment with trainer trl: use rlvr-debug check"
    assert "no experiment" not in plan_text(planned(PARAMS, {}, 2, RATES, free=10**10))


@pytest.mark.parametrize(
    "ends", ["sys.exit('first\\nno such rule')", "print('no such rule'); sys.exit('a remark')"]
)
def test_snakemake_s_own_error_is_not_taken_for_nothing_to_do(ends: str, tmp_path: Path) -> None:
    failing = [sys.executable, "-c", f"import sys; {ends}"]
    with pytest.raises(InputError, match=r"^snakemake --dry-run: no such rule$"):
        jobs_to_do(tmp_path, failing)
