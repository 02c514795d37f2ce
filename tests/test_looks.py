"""The sequential design: which runs a study may have, and which of them its looks choose."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json, write_text
from rlvr_debug.study.arms import runs
from rlvr_debug.study.checks import check_references
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Rates, plan_text, planned
from rlvr_debug.study.resolved import Study, read_study, resolve, write_study
from rlvr_debug.study.running import unnamed
from rlvr_debug.study.status import ToDo, study_status
from rlvr_debug.verdicts.looks import (
    NOTHING,
    Look,
    effects_of_all,
    last_look,
    look_file,
    looked,
    read_look,
    write_look,
)
from rlvr_debug.verdicts.rule import Bar, arm_table
from rlvr_debug.verdicts.tables import write_tables
from tests.made_up_study import CAUSE_FOUND, LONG, SLUGS
from tests.made_up_study import Study as MadeUp
from tests.study_file import changed, overlaid, refused

PARAMS = replace(load_params(ROOT / "params.yaml"), design="sequential")
DEFAULT = resolve(PARAMS, ROOT)
GATED = resolve(replace(PARAMS, phases="gated"), ROOT)
RATES = Rates({}, 0.013, 1e6, "made up")
BAR = looked(Bar.of(0.05, 0.1))
LEARNING, STILL = 0.3, 0.0
Gain = Callable[[str], float]


def first(study: Study = DEFAULT) -> Look:
    return study.looked.first()


def gains_of(study: Study, gain: Gain) -> pd.DataFrame:
    """A row of runs.csv for every run that the study may have: what `gain` says of its arm, and some noise."""
    noise = np.random.default_rng(5)
    spread = {name: float(noise.normal(0, 0.02)) for name in {run.name: 0 for run in study.runs}}
    keys = ("arm", "design", "hypothesis", "environment", "seed")
    table = pd.DataFrame([{key: getattr(run, key) for key in keys} for run in study.runs])
    same = [run.arm != "control" and run.trained_as in ("case", "control") for run in study.runs]
    gains = [gain(run.trained_as) + spread[run.name] for run in study.runs]
    changes = ["" if each else "something" for each in same]
    return table.assign(changes=changes, gain=gains, gain_greedy=gains)


def as_the_case(table: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The runs of that arm come out as the case's, to the last digit."""
    case = table[table["arm"] == "case"].set_index("seed")["gain"]
    own = table["arm"] == arm
    gains = table["gain"].where(~own, table["seed"].map(case))
    return table.assign(gain=gains, gain_greedy=gains)


def arms_after(study: Study, table: pd.DataFrame, look: Look) -> pd.DataFrame:
    """A row of each arm that has runs, once those that the look chose are done."""
    names = {(run.arm, run.seed) for run in study.chosen(look)}
    chosen = table[[pair in names for pair in zip(table["arm"], table["seed"], strict=True)]]
    return arm_table(chosen, "musique", BAR)


def looks(study: Study, gain: Gain, *present: str) -> list[Look]:
    """All looks of a study of these gains, the first runs before them."""
    table = gains_of(study, gain)
    found = [first(study)]
    while found[-1].more:
        arms = arms_after(study, table, found[-1])
        mechanisms = {slug: slug in present for slug in study.phases}
        found.append(study.looked.next(found[-1], arms, mechanisms, []))
        assert len(found) < 40
    return found


def one_cause(arm: str) -> float:
    """Only the attention mask matters, in the case and alone."""
    healthy = arm in ("control", "attention-mask") or (arm.endswith("-alone") and "mask" not in arm)
    return LEARNING if healthy or "gsm8k" in arm else STILL


def nothing(_: str) -> float:
    return STILL


# --- what runs first


def test_parts_alone_run_before_what_mends_them_and_a_repair_where_there_is_no_part_alone() -> None:
    seeds = first().seeds
    assert seeds["attention-mask-alone"] == seeds["prompt-tools-alone"] == 2
    assert seeds["attention-mask"] == seeds["prompt-tools"] == 0
    assert seeds["kl-beta-0"] == seeds["no-scaling"] == 2
    assert seeds["case"] >= 2 <= seeds["control"]


def test_an_arm_that_is_told_what_the_case_is_has_the_case_s_runs_and_asks_for_none() -> None:
    look = first()
    assert DEFAULT.looked.arms["forced-sync"].trained_as == "case"
    assert "forced-sync" not in DEFAULT.looked.layout(look.phase, NOTHING)[0]
    assert look.seeds["forced-sync"] == look.seeds["case"]
    names = {run.name for run in DEFAULT.chosen(look)}
    assert len(names) == DEFAULT.looked.trainings(look.seeds)


def test_arms_of_so_many_runs_have_the_first_so_many_seeds() -> None:
    look = replace(first(), seeds={**first().seeds, "case": 4})
    assert [run.seed for run in DEFAULT.chosen(look) if run.arm == "case"] == [0, 1, 2, 3]


def test_a_study_may_have_all_that_its_looks_can_ask_for_whatever_seeds_the_fixed_one_has() -> None:
    seeds = {run.arm: 0 for run in DEFAULT.runs}
    for run in runs(replace(PARAMS, seeds=(7,))):
        seeds[run.arm] = max(seeds[run.arm], run.seed + 1)
    assert (seeds["case"], seeds["control"], seeds["attention-mask"]) == (8, 8, 6)
    assert (seeds["random-reward"], seeds["gsm8k"], seeds["gsm8k-control"]) == (2, 2, 2)


# --- what follows


def test_a_study_ends_and_each_look_before_has_asked_for_more() -> None:
    untested = resolve(replace(PARAMS, hypotheses={}), ROOT)
    for study, gain in ((DEFAULT, one_cause), (DEFAULT, nothing), (untested, one_cause)):
        found = looks(study, gain, "hidden-context")
        assert [look.number for look in found] == list(range(len(found)))
        assert [look.more for look in found] == [True] * (len(found) - 1) + [False]
        totals = [study.looked.trainings(look.seeds) for look in found]
        assert all(a < b for a, b in pairwise(totals[:-1]))
        assert totals[-1] == totals[-2]


def test_an_arm_that_comes_out_as_the_case_to_the_last_digit_is_not_run_again() -> None:
    table = gains_of(DEFAULT, one_cause)
    for gains, again in ((table, True), (as_the_case(table, "kl-beta-0"), False)):
        rows = arms_after(DEFAULT, gains, first()).set_index("arm")
        assert rows.at["kl-beta-0", "tested"] == again
        assert ("kl-beta-0" in DEFAULT.looked.layout(3, rows)[0]) == again


def test_a_look_sees_of_each_effect_what_the_tables_say() -> None:
    """Spreads borrow from all arms of the environment: of those too that no look is about, and once of the same runs."""
    table = as_the_case(gains_of(DEFAULT, one_cause), "kl-beta-0")
    own = table["arm"] == "random-reward"
    table.loc[own, ["gain", "gain_greedy"]] *= 8
    seeds = {**first().seeds, "case": 4, "forced-sync": 4, "attention-mask": 3}
    rows = arms_after(DEFAULT, table, replace(first(), seeds=seeds)).set_index("arm")
    names, _, layout, found = DEFAULT.looked.seen(3, rows)
    told = rows.reindex(names).dropna(subset="seeds")
    assert {"no-scaling", "attention-mask", "attention-mask-alone"} <= {*told.index}
    effects = effects_of_all(layout, found, BAR)[1].of([names.index(arm) for arm in told.index])
    assert effects.p_holm == pytest.approx(told["p_holm"].to_numpy(), rel=1e-9)
    assert effects.p_equivalence == pytest.approx(told["p_equivalence"].to_numpy(), rel=1e-9)


def test_a_later_phase_joins_where_none_before_it_found_a_cause_and_else_there_is_none() -> None:
    begin = first(GATED)
    assert (begin.phase, begin.seeds["no-scaling"], begin.seeds["gsm8k"]) == (1, 0, 0)
    found = looks(GATED, one_cause)  # `looks` says of no cause that it is validated
    assert [look.phase for look in found] == sorted(look.phase for look in found)
    assert {1, 2, 3} <= {look.phase for look in found}
    assert found[-1].seeds["no-scaling"] >= 2 <= found[-1].seeds["kl-beta-0"]
    before = next(b for b, after in pairwise(found) if after.phase > b.phase)
    arms = arms_after(GATED, gains_of(GATED, one_cause), before)
    last = GATED.looked.next(before, arms, {}, ["hidden-context"])
    assert (last.more, last.phase, last.causes) == (False, 1, ("hidden-context",))
    assert dict(last.seeds) == dict(before.seeds)


# --- files


def test_a_look_is_read_as_it_was_written_and_another_file_is_one_line(tmp_path: Path) -> None:
    path = look_file(tmp_path, 1)
    write_look(first(), path)
    assert read_look(path) == first()
    write_text(path, '{"seeds": {}}')
    with pytest.raises(InputError, match=r"look_1\.json: not a look that the workflow wrote"):
        read_look(path)


def ended(results: Path, **seeds: int) -> Look:
    """Two looks of the default study, after the second of which nothing more is to run."""
    begin = replace(first(), number=1, seeds={**first().seeds, **seeds})
    last = replace(begin, number=2, more=False)
    for look in (begin, last):
        write_look(look, look_file(results, look.number))
    return last


def test_the_last_look_is_the_first_that_asks_for_nothing_and_is_of_the_study_s_arms(
    tmp_path: Path,
) -> None:
    arms = DEFAULT.looked.arms
    assert last_look(tmp_path, arms) is None
    last = ended(tmp_path)
    write_look(replace(last, number=3), look_file(tmp_path, 3))
    assert last_look(tmp_path, arms) == last
    assert last_look(tmp_path, [*arms, "another"]) is None


def test_tables_are_of_the_chosen_runs_and_the_cause_is_found_with_fewer(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "results", CAUSE_FOUND, design="sequential")
    study = replace(resolve(made.params, tmp_path), results=made.results)
    look = first(study)
    while look.more:
        look = study.look_at(look)
        write_look(look, look_file(made.results, look.number))
    last = read_look(look_file(made.results, look.number))
    chosen = study.chosen(last)
    write_tables(chosen, study.phases, {}, last, study.judged_by, made.results)
    tables = made.read()
    counts = tables["runs"].groupby("arm")["seed"].nunique().to_dict()
    assert counts == {arm: count for arm, count in look.seeds.items() if count}
    assert counts["attention-mask-alone"] < 6
    assert "attention-mask" not in counts  # alone it showed the cause
    # as the case to the last digit
    assert counts[LONG] == 2
    verdicts = tables["verdicts"].set_index("hypothesis")
    assert list(verdicts.index) == sorted(SLUGS)
    assert verdicts.loc["hidden-context", "status"] == "validated"
    assert verdicts.loc["kl-penalty", "status"] == "invalidated"
    assert "not run" not in " ".join(verdicts["evidence"])
    assert look.causes == ("hidden-context",)
    assert len(chosen) < len(study.runs)
    # looks are paid for: the same runs of a fixed design show the same with less doubt
    fixed = {**study.judged_by, "design": "fixed"}
    write_tables(chosen, study.phases, {}, last, fixed, made.results)
    p_looked, p_fixed = (each["arms"].set_index("arm")["p_holm"] for each in (tables, made.read()))
    assert p_looked["attention-mask-alone"] > p_fixed["attention-mask-alone"]


# --- around the workflow


def test_prune_keeps_what_looks_chose_and_all_while_they_are_under_way(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("case/2", "case/7", "attention-mask/0", "case/9"):
        write_text(results / "runs" / "musique" / name / "metrics.jsonl", "")
    names = [str(path.relative_to(results)) for path in unnamed(PARAMS, tmp_path)]
    assert names == ["runs/musique/case/9"]
    write_look(replace(first(), number=1), look_file(results, 1))
    assert unnamed(PARAMS, tmp_path) == [results / "runs" / "musique" / "case" / "9"]
    ended(results, case=3)
    write_look(first(), look_file(results, 3))
    names = [str(path.relative_to(results)) for path in unnamed(PARAMS, tmp_path)]
    assert names == [
        *("tables/look_3.json", "runs/musique/attention-mask"),
        *("runs/musique/case/7", "runs/musique/case/9"),
    ]
    # of other arms they say nothing
    other = replace(PARAMS, hypotheses={})
    gone = [str(path.relative_to(results)) for path in unnamed(other, tmp_path)]
    assert gone == ["runs/musique/attention-mask", "runs/musique/case/9"]


def test_a_plan_says_how_many_trainings_are_expected_and_how_many_there_may_be() -> None:
    found = planned(PARAMS, {}, 2, RATES, free=10**10)
    assert found.trainings == len(DEFAULT.trained)
    begin = DEFAULT.looked.trainings(first().seeds)
    assert begin <= found.expected_trainings < found.trainings
    assert found.whole
    assert found.expected
    assert found.expected.seconds < found.whole.seconds
    text = plan_text(found)
    assert (
        f"At most {found.trainings} trainings, about {found.expected_trainings} ({found.expected.seconds / 60:.1f} "
        "minutes) if one hypothesis is the cause" in " ".join(text.split())
    )
    assert "at most" in text
    assert max(map(len, text.splitlines())) < 80
    json.dumps(asdict(found))
    fixed = planned(replace(PARAMS, design="fixed"), {}, 2, RATES, free=10**10)
    assert fixed.expected_trainings == fixed.trainings
    assert fixed.expected == fixed.whole


def test_status_waits_for_what_is_chosen_and_calls_the_rest_later(tmp_path: Path) -> None:
    def states() -> dict[str, int]:
        found = study_status(DEFAULT, tmp_path, ToDo(frozenset(), 0.0), RATES).count()
        return {str(state): count for state, count in found.items()}

    begin, all_ = DEFAULT.looked.trainings(first().seeds), len(DEFAULT.trained)
    assert states() == {"waiting": begin, "later": all_ - begin}
    last = ended(tmp_path / "results", case=7)
    more = DEFAULT.looked.trainings(last.seeds)
    assert states() == {"waiting": more, "later": all_ - more}


# --- what is refused


def test_trainings_that_share_a_server_are_not_chosen_by_looks() -> None:
    vllm = {"environment": "vllm-cpu", "shared_by": "study"}
    params = changed(PARAMS, sampler="vllm", vllm=vllm, training={"lora_r": 8})
    with pytest.raises(InputError) as caught:
        check_references(params, Path("params.yaml"))
    said = str(caught.value)
    assert said.startswith(
        "params.yaml: key 'vllm.shared_by' is study, expected run with design sequential: "
    )
    assert "\n" not in said
    check_references(replace(params, design="fixed"), Path("params.yaml"))


def test_seeds_that_the_design_does_not_ask_for_are_not_passed_over_in_silence(
    tmp_path: Path,
) -> None:
    said = refused(tmp_path, design="sequential", seeds=[0, 1])
    assert said.startswith("key 'seeds' is given with design sequential, ")
    assert "set design: fixed" in said
    assert overlaid(tmp_path, seeds=[0, 1]).design == "fixed"
    assert overlaid(tmp_path, design="sequential").design == "sequential"
    said = refused(tmp_path, seeds=[0, 1], first_seed=7)
    assert said.startswith("key 'first_seed' is 7, expected 0 with design fixed")


def test_a_study_on_seeds_of_its_own_has_as_many_of_each_arm_from_the_first_on(
    tmp_path: Path,
) -> None:
    usual, moved = (resolve(overlaid(tmp_path, **told), ROOT) for told in ({}, {"first_seed": 100}))
    assert [run.seed + 100 for run in usual.runs] == [run.seed for run in moved.runs]
    first, other = (study.chosen(study.looked.first()) for study in (usual, moved))
    assert [(run.arm, run.seed + 100) for run in first] == [(run.arm, run.seed) for run in other]
    assert {run.seed for run in other if run.arm == "control"} == {100, 101, 102}


def test_results_from_before_there_was_a_choice_are_read_as_fixed(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_study(DEFAULT, path)
    told = read_json(path)
    assert read_study(path).is_sequential
    del told["params"]["design"]
    write_json(path, told)
    assert not read_study(path).is_sequential
