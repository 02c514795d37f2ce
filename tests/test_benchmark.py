"""The blind benchmark: blind, economical, and scored as its pages say. The whole of it is `make bench-faults`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults import case as cases_module
from benchmarks.faults import jobs, planted, run, score, study
from benchmarks.faults.case import Case, Task, Told, load_cases, module_of, parts_of, told
from benchmarks.faults.located import differing, parts_found
from benchmarks.faults.run import Place, noisy, recorded
from benchmarks.faults.study import CASE, CONTROL, MOST_ARMS, Outcome, all_arms, choose, judge
from rlvr_debug.causes import hypothesis_names, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Transcript
from rlvr_debug.environments.gsm8k import GSM8KRow
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.replay.answer import answer_of, timeless
from rlvr_debug.replay.check import check
from rlvr_debug.verdicts.decide import mechanism_of
from tests.check_answer import CAUSES as CHECKED_CAUSES
from tests.check_answer import case_answer
from tests.in_process import called

HERE = ROOT / "benchmarks" / "faults"
ARMS = {arm.name: arm for arm in (CASE, CONTROL, *all_arms())}


def planted_names() -> list[str]:
    return [f.stem.replace("_", "-") for f in sorted((HERE / "planted").glob("[a-z]*.py"))]


# --- what arms are told


BROKEN = Case(
    "x",
    "planted",
    ("kl-penalty",),
    "x",
    Task("gsm8k", {"temperature": 1.3}),
    ("kl-subtracted", "stale-sampler"),
    {"kl_beta": 0.2},
)


@pytest.mark.parametrize(
    ("arm", "faults", "training"),
    [
        ("case", ("kl-subtracted", "stale-sampler"), {"kl_beta": 0.2}),
        ("control", (), {}),
        ("kl-penalty-swap", ("stale-sampler",), {"kl_beta": 0.2}),
        ("kl-penalty-swap-alone", ("kl-subtracted",), {}),
        ("kl-penalty-knob", ("kl-subtracted", "stale-sampler"), {"kl_beta": 0.0}),
        ("hidden-context-swap", ("kl-subtracted", "stale-sampler"), {"kl_beta": 0.2}),
    ],
)
def test_an_arm_mends_its_own_stages_or_settings_and_no_others(
    arm: str, faults: tuple[str, ...], training: dict[str, float]
) -> None:
    found = told(BROKEN, ARMS[arm])
    assert (found.faults, found.training) == (faults, training)
    assert found.task == BROKEN.task


def test_trainings_that_are_told_the_same_are_one() -> None:
    single = replace(BROKEN, faults=("stale-sampler",), training={})
    digests = {arm: told(single, ARMS[arm]).digest for arm in ARMS}
    assert digests["lora-weight-sync-swap"] == digests["control"]
    alone = digests["lora-weight-sync-swap-alone"]
    assert alone == digests["hidden-context-swap"] == digests["case"]
    assert digests["case"] != digests["control"]
    assert Told.from_json(asdict(told(BROKEN, CASE))) == told(BROKEN, CASE)


# --- blind


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cases_module.SETTINGS, "gsm8k", {"prompts_per_step": 4, "steps": 2})


def observed(case: Case, folder: Path) -> dict[str, Any]:
    """All that a study is given of a case: what the check says, its log, and its runs' outcomes."""
    folder.mkdir()
    place = Place(told(case, CASE), folder)
    record = recorded(place)
    answer = timeless(answer_of(record, check(record)))
    outcome = run.run(place, 5, folder / "log")
    outcome.pop("seconds")
    logs = {f.name: f.read_text(encoding="utf-8") for f in (folder / "log").iterdir()}
    return {"check": answer, "outcome": outcome, **logs}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("", "loss-negated-twice"),
        ("", "gradients-never-zeroed"),
        ("outsiders", "ratio-upside-down"),
        ("outsiders", "clipped-ratio-detached"),
        ("outsiders", "decay-without-rate"),
    ],
)
def test_a_fault_that_no_hypothesis_names_deviates_and_is_the_mechanism_of_none(
    folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = cases_module.CASES.parent / folder
    monkeypatch.setattr(planted, "__path__", [*planted.__path__, str(cases)])
    case = cases_module.readable_cases(cases / "cases.yaml")[0][name]
    assert case.causes == ()
    record = recorded(Place(told(case, CASE), tmp_path))
    answer = answer_of(record, check(record))
    assert "deviates" in {each["status"] for each in answer["segments"]}
    assert not [slug for slug in hypothesis_names() if mechanism_of(slug, answer).present]


@pytest.mark.heavy
def test_the_name_of_a_fault_does_not_leak(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same fault under another name, with other words about it, is the same to the byte to whoever studies it."""
    original = ROOT / "src/rlvr_debug/causes/advantage_scaling/leave_one_out_residue.py"
    _, _, code = original.read_text(encoding="utf-8").split('"""', 2)
    (tmp_path / "innocent_name.py").write_text(f'"""Nothing."""{code}', encoding="utf-8")
    monkeypatch.setattr(planted, "__path__", [*planted.__path__, str(tmp_path)])
    case = replace(BROKEN, faults=("leave-one-out-residue",), training={}, task=Task("gsm8k"))
    renamed = replace(case, name="y", causes=("kl-penalty",), faults=("innocent-name",))
    assert (
        module_of("innocent-name").implementation
        is not module_of("leave-one-out-residue").implementation
    )
    seen = observed(case, tmp_path / "a")
    assert seen == observed(renamed, tmp_path / "b")
    # the case is broken, or the comparison would say nothing
    mended = Place(told(replace(case, faults=()), CASE), tmp_path / "c")
    healthy = run.run(mended, 5, tmp_path / "c" / "log")
    assert seen["outcome"]["log"] != healthy["log"]
    text = json.dumps(seen).lower().replace("-", "_")
    for word in (*variant_names(), *planted_names(), "known_bugs", "nemo"):
        assert word.replace("-", "_") not in text


# --- where, without training


def test_halves_are_searched_until_each_part_that_changes_something_is_named() -> None:
    asked: list[tuple[str, ...]] = []

    def same(names: Sequence[str]) -> bool:
        asked.append(tuple(names))
        return not {"c", "g"} & {*names}

    assert differing("abcdefgh", same) == ["c", "g"]
    assert len(asked) < 2 * 8
    # two that only together change anything are both named
    assert differing("ab", lambda names: len(names) < 2) == ["a", "b"]
    assert differing("", same) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "found"),
    [("empty-optimizer", "optimizer_step"), ("lora-at-the-full-rate", "training.lora_r")],
)
def test_a_fault_is_located_in_its_stage_or_setting_without_training(
    short: None, name: str, found: str
) -> None:
    fault = Case(name, "planted", ("x",), name, Task("gsm8k"), (name,))
    case = load_cases().get(name, fault)
    parts, steps = parts_found(told(case, CASE))
    assert parts == parts_of(case) == [found]
    assert steps < len(STAGES)


# --- which arms


@given(
    st.sets(st.sampled_from(CHECKED_CAUSES)),
    st.permutations(list(hypothesis_names())),
    st.integers(0, 18),
)
def test_at_most_three_arms_are_chosen_and_none_twice(
    present: set[str], logs: list[str], count: int
) -> None:
    arms = choose(case_answer(*present), logs[:count])
    names = [arm.name for arm in arms]
    assert 0 < len(names) == len(set(names)) <= MOST_ARMS
    if suspects := study._present(case_answer(*present)):
        assert arms[0].hypothesis == suspects[0]
        assert {arm.hypothesis for arm in arms} <= set(suspects)


@pytest.mark.parametrize(
    ("present", "logs", "chosen"),
    [
        ("kl-penalty", "", "kl-penalty-swap kl-penalty-knob kl-penalty-swap-alone"),
        (
            "lora-weight-sync sequence-mismatch",
            "",
            "lora-weight-sync-swap-alone sequence-mismatch-swap-alone",
        ),
        (
            "",
            "hidden-context kl-penalty library-functionality",
            "hidden-context-swap kl-penalty-swap kl-penalty-knob",
        ),
    ],
)
def test_of_one_suspect_both_repairs_are_tried_and_of_several_each_alone(
    present: str, logs: str, chosen: str
) -> None:
    arms = choose(case_answer(*present.split()), logs.split())
    assert [arm.name for arm in arms] == chosen.split()


# --- answers


def outcomes(rewards: list[float], log: str) -> list[Outcome]:
    return [Outcome(seed, reward, reward, f"{log} {seed}") for seed, reward in enumerate(rewards)]


LOW, HIGH = [0.30, 0.31, 0.29, 0.30], [0.80, 0.81, 0.79, 0.80]
RUNS = {"case": outcomes(LOW, "case"), "control": outcomes(HIGH, "control")}


def test_a_cause_with_its_mechanism_and_effect_is_validated_and_first() -> None:
    checked = case_answer("kl-penalty")
    arms = choose(checked, [])
    runs = RUNS | {
        "kl-penalty-swap": outcomes(HIGH, "mended"),
        "kl-penalty-knob": outcomes(LOW, "knob"),
        "kl-penalty-swap-alone": outcomes(LOW, "alone"),
    }
    answer = judge(checked, [], arms, runs)
    assert answer.validated == ("kl-penalty",)
    # the setting mends nothing, so that whoever has settings alone learns nothing
    for mode, slugs in {"all": 1, "swaps": 1, "experiments": 1, "knobs": 0}.items():
        assert answer.ranked[mode] == ("kl-penalty",) * slugs


def test_an_arm_whose_runs_are_to_the_byte_the_cases_changes_nothing() -> None:
    """What the check found is then a symptom of another cause, and what it accuses is exonerated."""
    checked = case_answer("group-construction")
    arms = choose(checked, [])
    same = RUNS["case"]
    runs = RUNS | {a.name: RUNS["control"] if a.design == "alone" else same for a in arms}
    answer = judge(checked, [], arms, runs)
    assert (answer.validated, answer.inconclusive) == ((), False)
    assert [verdict.status for verdict in answer.verdicts] == ["invalidated"]
    assert answer.ranked["all"] == ()
    assert answer.ranked["experiments"] == ()


# --- scores


def row(**changes: Any) -> dict[str, Any]:
    modes = {f"ranked_{mode}": "" for mode in study.MODES}
    return {"kind": "planted", "causes": "a", "counts": True, "validated": "", **modes, **changes}


def test_shares_are_over_what_counts_and_have_exact_intervals() -> None:
    healthy = row(kind="healthy", causes="", counts=False, ranked_all="a")
    rows = [
        row(ranked_all="a b"),
        row(ranked_all="b c a"),
        row(causes="a b", ranked_all="b"),
        row(causes=""),
        row(causes="", ranked_all="a"),
        row(counts=False, ranked_all="a"),
        healthy,
        {**healthy, "validated": "a"},
    ]
    by_mode = {found["mode"]: found for found in score.score_rows(pd.DataFrame(rows))}
    found = by_mode["all"]
    assert (found["top1"], found["top1_of"], found["top3"], found["top1_of_all_of"]) == (3, 5, 4, 6)
    # Clopper and Pearson's for 3 of 5
    assert (found["top1_low"], found["top1_high"]) == pytest.approx((0.1466, 0.9473), abs=1e-4)
    # a suspicion that is not validated blames nobody
    assert (found["false"], found["false_of"]) == (1, 2)


def test_a_noisy_judge_judges_the_same_transcript_alike() -> None:
    clean = build_environment("gsm8k", {"max_new_tokens": 8, "weights": {"correct": 1.0}})
    judge_ = noisy(clean, 0.5)
    rows = [GSM8KRow(str(n), "?", f"#### {n}") for n in range(400)]
    right = [Transcript([f"#### {n}"]) for n in range(400)]
    scores = [judge_.score(r, t)["correct"] for r, t in zip(rows, right, strict=True)]
    assert scores == [judge_.score(r, t)["correct"] for r, t in zip(rows, right, strict=True)]
    # of half that are drawn, half come out wrong
    assert 0.65 < sum(scores) / 400 < 0.85
    assert judge_.max_new_tokens == 8


def test_a_job_goes_on_with_the_seed_that_is_missing(short: None, tmp_path: Path) -> None:
    out = tmp_path / "outcomes.json"
    (tmp_path / "7.json").write_text('{"seed": 7, "sampled": 0.123}', encoding="utf-8")
    given_ = json.dumps(asdict(told(replace(BROKEN, task=Task("gsm8k"), faults=()), CONTROL)))
    words = ("runs", "--told", given_, "--seeds", "7", "--out", str(out))
    assert called(jobs.main, "jobs", *words).returncode == 0
    assert json.loads(out.read_text(encoding="utf-8")) == [{"seed": 7, "sampled": 0.123}]


# --- what is committed


def test_the_committed_scores_follow_from_the_committed_cases() -> None:
    costs = {name: [""] for name in ("cost", "cost_low", "cost_high")}
    cases = pd.read_csv(HERE / "results" / "cases.csv", keep_default_na=False, na_values=costs)
    expected = pd.DataFrame(score.score_rows(cases)).to_csv(index=False, float_format="%.4g")
    assert expected == (HERE / "results" / "scores.csv").read_text(encoding="utf-8")
