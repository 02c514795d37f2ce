"""A stage that changes nothing in any step of the case and the control is not trained, and the verdict says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.gsm8k import synthetic_gsm8k
from rlvr_debug.files import read_json, read_table, write_json, write_jsonl
from rlvr_debug.study.arms import filled
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import UNCHANGED, Study, resolve
from rlvr_debug.trainers import SHADOW
from rlvr_debug.trainers.own.training import train_run
from rlvr_debug.verdicts.decide import Evidence, decide
from rlvr_debug.verdicts.looks import look_file, read_look
from rlvr_debug.verdicts.rule import Bar
from tests.made_up_study import Study as MadeUp
from tests.shared import once
from tests.study_file import changed
from tests.test_workflow import Project, copy

PARAMS = load_params(ROOT / "params.yaml")
# the second one changes nothing, since a batch is one micro-batch
FAULTS = ["empty-optimizer", "per-micro-batch-denominator"]
HYPOTHESES: dict[str, Any] = {
    **dict.fromkeys(PARAMS.arms),
    "kl-penalty": {"arms": {"kl-beta-0": {}}},
}
SMALL = {"prompts_per_step": 2, "group_size": 2, "steps": 4}


def study_of(**over: Any) -> Params:
    told = {
        "case": "sick",
        "cases": {"sick": {"faults": FAULTS, "training": {"clip": 0.3}}},
        "environment": "gsm8k",
        "design": "sequential",
        "hypotheses": HYPOTHESES,
        "training": SMALL,
    }
    return filled(changed(PARAMS, **{**told, **over}), Path("params.yaml"))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    found = replace(resolve(study_of(), ROOT), results=tmp_path / "results")
    rows = synthetic_gsm8k(8, steps={1: 1}, seed=0)
    place = found.rows("gsm8k", "train")
    place.parent.mkdir(parents=True)
    write_jsonl(place, (row.to_json() for row in rows))
    return found


def test_only_what_differs_in_stages_alone_is_compared(study: Study) -> None:
    stages = {"unnamed-optimizer-step", "unnamed-aggregate"}
    assert set(study.compared) == {*stages, *(f"{name}-alone" for name in stages)}


@pytest.mark.parametrize(
    "over",
    [
        {"launch": {"processes": 2, "config": "configs/ddp.yaml"}},
        {"sampler": "vllm"},
        {"trainer": "trl", "cases": {"sick": {"faults": [], "training": {"clip": 0.3}}}},
        # what mends the only fault is the control, and it alone is the case
        {"cases": {"sick": {"faults": FAULTS[:1]}}},
    ],
)
def test_nothing_is_compared_where_runs_are_not_as_the_comparison_is_or_are_there_anyway(
    over: dict[str, Any],
) -> None:
    assert resolve(study_of(**over), ROOT).compared == {}


def parted(study: Study, arm: str, seed: int, **stages: int | None) -> None:
    """What the training of that run left of the stages."""
    run = study.run(f"gsm8k/{arm}/{seed}")
    faults = dict(zip(("optimizer_step", "aggregate"), FAULTS, strict=True))
    told = {faults[stage]: step for stage, step in stages.items()}
    found = {"steps": run.training.steps, "parted": told}
    write_json(study.results / "runs" / run.name / SHADOW, found)


def found_in(study: Study, count: int) -> set[str]:
    runs = [run for run in study.runs if run.arm in ("case", "control") and run.seed < count]
    return {each["arm"] for each in study.unchanged(runs)}


def test_an_arm_is_unchanged_only_where_no_step_of_any_run_parts(study: Study) -> None:
    for arm in ("case", "control"):
        parted(study, arm, 0, optimizer_step=1)
    assert found_in(study, 1) == set()  # the other stage was not compared
    for seed in range(2):
        parted(study, "control", seed, aggregate=None, optimizer_step=4)
        parted(study, "case", seed, aggregate=None, optimizer_step=None)
    same = {"unnamed-aggregate", "unnamed-aggregate-alone", "unnamed-optimizer-step"}
    assert found_in(study, 2) == same
    # a third run of which nothing is known, then one whose last step parts
    assert found_in(study, 3) == set()
    parted(study, "control", 2, aggregate=SMALL["steps"], optimizer_step=None)
    assert found_in(study, 3) == set()
    parted(study, "case", 2, aggregate=None, optimizer_step=None)
    assert found_in(study, 3) == same - {"unnamed-aggregate-alone"}


def test_an_arm_with_a_seed_that_the_other_has_not_is_trained(tmp_path: Path) -> None:
    seeds = {"control": [0], "alone": [0], "others": [0, 1]}
    found = resolve(replace(study_of(seeds=seeds), design="fixed"), ROOT)
    study = replace(found, results=tmp_path / "results")
    for run in study.trained.values():
        if run.arm in ("case", "control"):
            parted(study, run.arm, run.seed, aggregate=None, optimizer_step=None)
    runs = [run for run in study.runs if run.arm in ("case", "control")]
    other = {each["arm"] for each in study.unchanged(r for r in runs if r.seed == 0)}
    assert {each["arm"] for each in study.unchanged(runs)} - other == {
        "unnamed-aggregate",
        "unnamed-optimizer-step",
    }


def test_only_the_case_and_the_control_are_told_with_what_their_stages_are_compared(
    study: Study,
) -> None:
    told = {run.arm: study.training(name).shadow for name, run in study.trained.items()}
    assert (told.pop("case"), told.pop("control")) == ((), tuple(FAULTS))
    assert {*told.values()} == {None}


def test_a_training_writes_in_which_step_its_stages_part(study: Study, tmp_path: Path) -> None:
    job = study.training("gsm8k/control/0")
    train_run(replace(job, out=tmp_path / "run"))
    found = read_json(tmp_path / "run" / SHADOW)
    # the rate of the first update is 0
    assert found == {"steps": 4, "parted": {FAULTS[0]: 1, FAULTS[1]: None}}


TOLD = {"arm": "unnamed-aggregate-alone", "hypothesis": "unnamed-aggregate"}


def test_looks_have_no_runs_of_what_changes_nothing(study: Study) -> None:
    before = study.looked_in(study.results).first()
    assert before.seeds["unnamed-aggregate-alone"] == 2
    write_json(study.results / UNCHANGED, [TOLD, {**TOLD, "arm": "kl-beta-0"}])
    after = study.looked_in(study.results).first()
    assert after.seeds["unnamed-aggregate-alone"] == 0
    # a changed setting is trained, whatever an earlier study left
    for arm in ("unnamed-optimizer-step-alone", "unnamed-training-clip-alone", "kl-beta-0"):
        assert after.seeds[arm] == before.seeds[arm] == 2


def test_what_was_not_trained_for_it_is_invalidated_and_says_why() -> None:
    same = {**TOLD, "as": "control", "steps": 90, "runs": 2}
    columns = ("arm", "design", "hypothesis", "environment")
    rows = pd.DataFrame([dict.fromkeys(columns, "case")])
    slugs = ["unnamed-aggregate", "kl-penalty"]
    evidence = Evidence({}, rows, unchanged=[same])
    [found, other] = decide(slugs, evidence, Bar.of(0.05, 0.1))
    assert (found.status, found.confidence) == ("invalidated", "high")
    assert found.evidence == (
        "unnamed-aggregate-alone: not trained, since it is the control to the byte, identical in all 90 steps of 2 runs"
    )
    assert other.status == "pending"


# --- a whole study


def run_whole(factory: pytest.TempPathFactory, name: str, **over: Any) -> Project:
    """Return a finished study of that name. Not to be changed.

    Its case has a strong fault that no hypothesis is about, and one that changes nothing.
    """

    def make(place: Path) -> None:
        (place / "project").mkdir()
        project = copy(ROOT, place / "project", forked=True)
        project.overlay(
            {
                "study": "mini",
                "environment": "gsm8k",
                "case": "sick",
                "cases": {"verifiers-0.1.3": None, "sick": {"faults": FAULTS}},
                "data": {"gsm8k": {"rows": 200, "heldout": 96}},
                "training": {"prompts_per_step": 8, "steps": 8, "save_steps": 0},
                "hypotheses": HYPOTHESES,
                **over,
            }
        )
        done = project.run()
        assert done.returncode == 0, done.stderr
        (place / "said").write_text(done.stdout, encoding="utf-8")

    return Project(once(factory, name, make) / "project", forked=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return run_whole(tmp_path_factory, "unnamed", design="sequential")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Its case departs in a setting too: else each stage mended is the other one alone, and is trained as that."""
    return run_whole(
        tmp_path_factory,
        "unnamed-fixed",
        design="fixed",
        seeds={key: [0, 1] for key in ("others", "control", "alone")},
        cases={"verifiers-0.1.3": None, "sick": {"faults": FAULTS, "training": {"clip": 0.3}}},
    )


@pytest.mark.heavy
def test_a_study_whose_fault_no_hypothesis_is_about_ends_with_that_fault_located(
    whole: Project,
) -> None:
    tables = whole.results / "tables"
    verdicts = read_table(tables / "verdicts.csv").set_index("hypothesis")
    assert verdicts.index[0] == "unnamed-optimizer-step"
    assert verdicts.loc["unnamed-optimizer-step", "status"] == "located_not_explained"
    assert verdicts.loc["kl-penalty", "status"] != "validated"
    said = (whole.root.parent / "said").read_text(encoding="utf-8").splitlines()
    lines = [line for line in said if "unnamed-optimizer-step" in line or "kl-penalty" in line]
    assert "located, not explained" in lines[0]
    page = (whole.results / "report.html").read_text(encoding="utf-8")
    assert "Something in optimizer_step that no hypothesis names costs" in page


@pytest.mark.heavy
def test_a_study_trains_nothing_for_a_stage_that_changes_nothing(whole: Project) -> None:
    last = read_look(look_file(whole.results, len(list(whole.results.glob("tables/look_*.json")))))
    assert not last.more
    assert last.seeds["unnamed-aggregate-alone"] == 0 < last.seeds["unnamed-optimizer-step-alone"]
    assert not (whole.results / "runs" / "gsm8k" / "unnamed-aggregate-alone").exists()
    verdicts = read_table(whole.results / "tables" / "verdicts.csv").set_index("hypothesis")
    assert verdicts.loc["unnamed-aggregate", "status"] == "invalidated"


@pytest.mark.heavy
def test_a_study_with_such_arms_has_nothing_to_do_once_it_is_done(whole: Project) -> None:
    again = whole.run()
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr


@pytest.mark.heavy
def test_the_fixed_design_trains_nothing_for_it_either(fixed: Project) -> None:
    trained = {path.name for path in (fixed.results / "runs" / "gsm8k").iterdir()}
    assert trained >= {"case", "control", "unnamed-optimizer-step", "unnamed-optimizer-step-alone"}
    assert not trained & {"unnamed-aggregate", "unnamed-aggregate-alone"}
    verdicts = read_table(fixed.results / "tables" / "verdicts.csv").set_index("hypothesis")
    assert verdicts.loc["unnamed-aggregate", "status"] == "invalidated"
    assert "not trained" in str(verdicts.loc["unnamed-aggregate", "evidence"])
    again = fixed.run()
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr


def test_status_does_not_wait_for_what_the_fixed_design_leaves_out(study: Study) -> None:
    study = replace(study, params=replace(study.params, design="fixed"))
    seeds = {run.name for run in study.runs if run.arm == "unnamed-aggregate"}
    assert seeds <= {run.name for run in study.chosen(study.last_look(study.results))}
    write_json(study.results / UNCHANGED, [{**TOLD, "arm": "unnamed-aggregate"}])
    left = {run.name for run in study.chosen(study.last_look(study.results))}
    assert {run.name for run in study.runs} - left == seeds


@pytest.mark.parametrize(
    ("parted", "expected"),
    [
        ({"empty-optimizer": None}, "invalidated"),
        ({"empty-optimizer": 20}, "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_that_a_mechanism_is_absent_counts_where_the_whole_run_of_the_case_shows_it(
    tmp_path: Path, parted: dict[str, int | None] | None, expected: str
) -> None:
    """Mending the optimizer's step makes this case worse, which is no equivalence: the verdict hangs on the check."""
    rewards = {"case": 0.5, "control": 0.9, "mended": 0.1, "mended-alone": 0.9}
    made = MadeUp(
        tmp_path,
        {**rewards, "random-reward": 0.0},
        faults=("empty-optimizer", "eos-not-trained"),
        hypotheses={"optimizer-no-op": {"arms": {"mended": {"swap": ["optimizer_step"]}}}},
    )
    made.check()
    for run in made.runs:
        file = made.folder(run) / SHADOW
        file.unlink(missing_ok=True)
        if parted is not None:
            write_json(file, {"steps": 3, "parted": parted})
    verdicts = made.tables()["verdicts"].set_index("hypothesis")
    assert verdicts.loc["optimizer-no-op", "status"] == expected
