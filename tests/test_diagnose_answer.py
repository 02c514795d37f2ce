"""What a terminal and a page show of a diagnosis, the study that it writes, and what two logs differ in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from rlvr_debug.causes import hypothesis_names
from rlvr_debug.causes.check import log_checks
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.checks import STANDS_OUT
from rlvr_debug.diagnosis.compare import compare, comparison_json, comparison_text
from rlvr_debug.diagnosis.evidence import curve, evidence
from rlvr_debug.diagnosis.rank import Diagnosis, diagnose, diagnose_log
from rlvr_debug.diagnosis.report import diagnosis_text, in_order, reward_text
from rlvr_debug.logs.log import Log, make_log, read_log
from rlvr_debug.logs.structured import Rows
from rlvr_debug.report.diagnosis_page import HEIGHT, WIDTH, comparison_html, diagnosis_html, drawn
from rlvr_debug.study.diagnosed import overlay_text, write_overlay, write_study
from rlvr_debug.study.params import load_params
from tests.in_process import called
from tests.test_diagnose import (
    PLANTED,
    REAL,
    RIGHT,
    SEEDS,
    diagnosed,
    fits,
    flat,
    healthy,
    log_of,
    real,
    rows_of,
)


@given(
    seed=SEEDS,
    planted=st.sets(st.sampled_from(sorted(PLANTED)), min_size=1),
    drop=st.sets(st.sampled_from(sorted(set(healthy(0)) - {"step", "reward"})), max_size=8),
)
@settings(max_examples=15)
def test_the_answer_to_any_log_fits_a_terminal_and_ranks_evidence_alone(
    seed: int, planted: set[str], drop: set[str]
) -> None:
    run = flat(seed, **{PLANTED[name][0]: PLANTED[name][2] for name in planted})
    found = diagnosed({name: values for name, values in run.items() if name not in drop})
    fits(found)
    chances = [each.probability for each in found.ranked]
    assert chances == sorted(chances, reverse=True)
    assert all(0 < each.probability < 1 and each.findings for each in found.ranked)
    assert found.stands_out == (bool(chances) and chances[0] >= STANDS_OUT)
    assert set(to_log(found.findings, found.log)).isdisjoint(found.log.sources.values())


@pytest.mark.parametrize("size", [9, 12, 40, 120])
def test_the_reward_is_given_with_students_interval(size: int) -> None:
    rewards = np.random.default_rng(size).random(size)
    found = diagnosed({"step": np.arange(size), "reward": rewards})
    assert found.ends is not None
    third = rewards[: size // 3]
    low, high = student.interval(
        0.95, third.size - 1, third.mean(), third.std(ddof=1) / third.size**0.5
    )
    assert found.ends[0].value == pytest.approx(third.mean())
    assert found.ends[0].high - found.ends[0].low == pytest.approx(high - low, rel=0.04)
    assert f"{found.ends[0].value:.3g} [" in reward_text(found)


@pytest.mark.parametrize(
    ("quantity", "values", "rows"),
    [
        ("learning_rate", [1e-5] * 10 + [0.0] * 30, "steps 11 to 40"),
        # cut from the start on; and less often there than later, so that all rows are spoken of
        ("truncated", [0.6, 0.6] + [0.9] * 38, "steps 1 to 2"),
        ("truncated", [1.0, 1.0] + [0.7] * 38, "steps 1 to 40"),
        ("truncated", [1.0] * 40, "steps 1 to 40"),
        ("reward", [0.8] * 12 + [0.1] * 28, "steps 1 to 2 and 28 to 40"),
        ("entropy", [2.0] * 20 + [0.05] * 20, "steps 1 to 13 and 28 to 40"),
        # those that are not finite, also where none is
        ("grad_norm", [1.0] * 30 + [np.inf] * 10, "steps 31 to 40"),
        ("loss", [0.5] * 5 + [np.inf] + [0.5] * 34, "step 6"),
        ("grad_norm", [np.inf] * 40, "steps 1 to 40"),
    ],
)
def test_the_rows_that_are_cited_are_those_that_are_spoken_of(
    quantity: str, values: list[float], rows: str
) -> None:
    run = {"reward": np.full(40, 0.3), "step": np.arange(1, 41), quantity: np.array(values)}
    found = diagnosed(run)
    [said] = [r.rows for r in found.ranked if r.rows.startswith(found.log.sources[quantity])]
    assert said.endswith(f", {rows}")


def test_a_reward_rises_by_what_rollouts_differ_by_however_far_from_0_it_is() -> None:
    rewards = 0.75 + np.repeat([0.0, 0.01, 0.02], 15) + 0.002 * np.sin(np.arange(45))
    run = {"step": np.arange(45), "reward": rewards}
    assert diagnosed(run).learns is False
    assert diagnosed({**run, "reward_std": np.full(45, 0.07)}).learns is True


def test_a_run_that_learns_is_blamed_for_nothing_that_is_mild_or_left_to_learn() -> None:
    run = {"step": np.arange(40), "dead_groups": np.full(40, 0.8), "truncated": np.full(40, 0.95)}
    assert diagnosed({**run, "reward": np.full(40, 0.3)}).ranked
    assert diagnosed({**run, "reward": np.linspace(0.2, 0.9, 40)}).ranked == ()
    mild = diagnosed({**healthy(0), "truncated": np.full(40, 0.3)})
    assert mild.ranked == ()
    assert "No cause stands out." in diagnosis_text(mild)


def test_a_log_of_rewards_alone_names_their_parts_and_no_cause() -> None:
    random = np.random.default_rng(0)
    parts = random.random((40, 2))
    rows = [
        {"step": n, "reward": a + b / 2, "search_reward": a, "attack_reward": b, "gpu": 60 + b * a}
        for n, (a, b) in enumerate(parts.tolist(), start=1)
    ]
    found = diagnose_log(log_of(rows))
    assert list(found.log.parts) == ["attack_reward", "search_reward"]
    assert (found.ranked, found.log.unknown) == ((), ("gpu",))
    text = diagnosis_text(found).replace("\n", " ")
    assert "reward, attack_reward, search_reward are all that is logged" in text
    assert "Its parts: attack_reward 0.4" in text
    assert len(to_log(found.findings, found.log)) == 3
    # columns of the same names that do not add up to the reward are none of its parts
    other = [{**row, "reward": x} for row, x in zip(rows, random.random(40), strict=True)]
    assert log_of(other).parts.empty


ONE_PART = ("two reward functions or more: this run has one",)


def test_nothing_is_asked_for_that_is_logged_or_that_the_trainer_cannot_log() -> None:
    columns = flat(0)
    for name in ("sampler_gap", "tool_calls", "tool_failures"):
        del columns[name]
    part = {"rewards/only/mean": 0.3, "rewards/only/std": 0.1}
    found = diagnose_log(log_of([{**row, **part} for row in rows_of(columns)]))
    asked = to_log(found.findings, found.log)
    assert not any("rewards/" in name or "tools/" in name for name in asked)
    assert len(asked) == len(set(asked))
    assert {f.check.name: f.missing for f in found.findings}["dead-part"] == ONE_PART


def test_what_could_not_be_checked_is_said_with_the_setting_and_the_reason() -> None:
    missing = {each.check.name: each.missing for each in real("truncation").findings}
    assert missing["sampler-gap"] == ("sampling/sampling_logp_difference/mean (use_vllm=True)",)
    assert missing["parts-conflict"] == missing["dead-part"] == ONE_PART
    # it has rows enough, and a reward that is constant
    assert missing["scale-uneven"] == (
        "logged, but in too few rows, not from step 1 on, or always the same",
    )
    few = {name: healthy(0)[name] for name in ("step", "reward")}
    parts = [{"reward": n % 2, "rewards/a/mean": n % 2, "rewards/b/mean": 0} for n in range(40)]
    found = {f.check.name: f.missing for f in diagnose_log(log_of(parts)).findings}
    assert found["dead-part"] == ("rewards/<part>/std of every part",)
    missing = {each.check.name: each.missing for each in diagnosed(few).findings}
    assert missing["dead-groups"] == ("frac_reward_zero_std",)
    assert missing["learning-rate-zero"] == ("learning_rate",)
    assert "frac_reward_zero_std" in diagnosis_text(diagnosed(few), verbose=True)
    asked = {name for each in diagnosed(flat(0)).findings for name in each.missing}
    assert "completions with their reward (log_completions=True)" in asked


def written(folder: Path, run: dict[str, Any], **told: Any) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows_of(run))
    (folder / "metrics.jsonl").write_text(text)
    (folder / "training_args.json").write_text(json.dumps(told))
    return folder


def test_what_to_change_is_named_with_the_value_of_the_runs_own_settings(tmp_path: Path) -> None:
    found = diagnose(written(tmp_path, flat(0, truncated=1.0), max_completion_length=256))
    assert found.ranked[0].change == "max_completion_length, now 256: try 512"
    assert "Change: max_completion_length, now 256: try 512" in diagnosis_text(found)
    verl = {"actor/lr": 1e-6, "critic/score/mean": 0.3, "response_length/clip_ratio": 0.95}
    rows = [{"training/global_step": n, **verl, "response_length/max": 256.0} for n in range(1, 41)]
    there = diagnose_log(log_of(rows)).ranked[0]
    assert there.change == "data.max_response_length, now 256: try 512"
    assert "twice `data.max_response_length`" in there.refuted_by
    weight = {"actor_rollout_ref.actor.kl_loss_coef": 5.0}
    held = diagnose_log(
        replace(log_of([{**r, "response_length/clip_ratio": 0} for r in rows]), settings=weight)
    )
    [reason] = [each.reason for each in held.ranked if each.slug == "kl-penalty"]
    assert reason.startswith("`actor_rollout_ref.actor.kl_loss_coef` is 5: ")


def test_what_the_settings_mean_is_no_finding(tmp_path: Path) -> None:
    still = flat(0, kl=0.0)
    assert "kl-stays-zero" in diagnose(written(tmp_path, still, beta=0.04)).ranked[0].checks
    meant = diagnose(written(tmp_path, still, beta=0))
    assert meant.ranked == ()
    [said] = [f for f in meant.findings if f.check.name == "kl-stays-zero"]
    assert (said.status, said.shown.sentence) == ("fine", "`beta` is 0, so this is intended.")


def test_a_setting_that_nobody_means_is_a_cause_of_a_run_that_does_not_learn_alone(
    tmp_path: Path,
) -> None:
    [first] = diagnose(written(tmp_path, flat(0), beta=5.0)).ranked
    assert (first.slug, first.checks, first.rows) == ("kl-penalty", ("beta-large",), "its settings")
    assert first.change == "beta, now 5: try 0.5"
    assert first.probability >= STANDS_OUT
    assert diagnose(written(tmp_path, healthy(0), beta=5.0)).ranked == ()


@pytest.mark.parametrize(
    "text",
    ["{", "- 1\n", "a: &a {b: &b {c: 1}}\nd: {e: *a, f: *b, g: *a}\nbeta: 3", "x: 2020-99-99"],
)
def test_settings_beside_a_log_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    written(tmp_path, healthy(0))
    (tmp_path / "training_args.json").unlink()
    (tmp_path / "config.yaml").write_text(text)
    found = read_log(tmp_path).settings
    assert found.get("beta") == (3 if "beta" in text else None)


def test_a_weight_that_carries_the_policy_off_while_nothing_changes_is_an_old_sampler() -> None:
    """Who samples from old weights writes and earns what it did, however far the policy is from its reference."""
    run = flat(0, kl=np.linspace(0, 4, 40), loss=0.04 * np.linspace(0, 4, 40))
    del run["sampler_gap"]
    first = diagnosed(run).ranked[0]
    assert (first.slug, first.checks[0]) == ("lora-weight-sync", "moves-in-vain")
    fallen = {**run, "reward": np.linspace(0.3, 0.1, 40)}
    assert diagnosed(fallen).ranked[0].slug == "gradient-explosion"


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.5] * 30 + [np.inf] * 10, "loss in 10 rows, from step 31 on (loss, steps 31 to 40)."),
        ([0.5] * 5 + [np.inf] + [0.5] * 34, "loss in 1 row, first in step 6 (loss, step 6)."),
        ([0.5] * 40, "not-finite: Loss and KL are finite."),
    ],
)
def test_what_is_not_finite_is_said_with_its_first_step_and_what_is_not_logged_is_not(
    losses: list[float], said: str
) -> None:
    run = {name: flat(0)[name] for name in ("step", "reward", "kl")} | {"loss": np.array(losses)}
    assert said in " ".join(diagnosis_text(diagnosed(run), verbose=True).split())


def test_a_log_without_a_reward_is_told_which_column_it_lacks() -> None:
    found = diagnosed({name: flat(0)[name] for name in ("step", "loss", "grad_norm")})
    assert reward_text(found).startswith("No column of a reward: expected one such as reward, ")


def test_names_of_another_framework_are_not_asked_for() -> None:
    """Weights & Biases' own step made a log of KL one of OpenRLHF, which was to log actor_grad_norm."""
    log = log_of([{"train/global_step": n, "train/kl": 0.1} for n in range(1, 41)])
    asked = to_log(diagnose_log(log).findings, log)
    assert {"reward", "grad_norm"} <= {*asked}


def test_what_no_one_would_ask_about_is_no_note() -> None:
    """Every report said that a loss near 0 is harmless: of a loss that is not, and of one that is NaN."""
    noted = "a loss near 0 is harmless: with one update per batch it is 0 by construction"
    for losses, without, said in (
        (np.zeros(40), "kl", f"{noted}."),
        (np.zeros(40), "", f"{noted}, but for the KL."),
        (np.array([1.0, -1.0] * 20), "kl", ""),
        (np.array([0.0] * 30 + [np.inf] * 10), "kl", ""),
    ):
        run = {n: values for n, values in flat(0, loss=losses).items() if n != without}
        assert [n for n in diagnosed(run).notes if n.startswith(noted)] == [said][: bool(said)]


def test_a_change_is_what_the_finding_s_refutation_changes() -> None:
    """kl-explodes was refuted by `beta` and changed the learning rate."""
    for check in log_checks():
        named = set(re.findall(r"`(\w+)`", check.refuted_by))
        assert not check.change or named <= {*check.change}, check.name


def test_parts_of_a_reward_that_rises_are_said_where_one_of_them_does_not() -> None:
    rising, still = np.linspace(0, 1, 40), np.full(40, 0.5)
    for other, is_said in ((still, True), (rising, False)):
        parts = {"rewards/a/mean": rising, "rewards/b/mean": other}
        rows = [{n: x[i] for n, x in parts.items()} for i in range(40)]
        found = diagnose_log(log_of([{**row, "reward": sum(row.values())} for row in rows]))
        assert found.learns
        assert ("Its parts: a 0.154 to 0.846, b 0.5 to 0.5." in diagnosis_text(found)) == is_said


@pytest.mark.parametrize(("columns", "width"), [("70", 70), ("20", 60), ("300", 120)])
def test_lines_are_as_wide_as_the_terminal_within_bounds(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = diagnosis_text(real("kl-blow-up"), verbose=True).partition("Could not be checked")[0]
    assert width - 12 < max(map(len, text.splitlines())) <= width


def test_weak_signs_are_whole_where_a_screen_has_room_and_cut_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were cut before what they mean."""
    few = {name: flat(0, dead_groups=0.8, kl=0.0)[name] for name in ("step", "reward", "kl")}
    few |= {"learning_rate": np.full(40, 1e-6), "dead_groups": np.full(40, 0.8)}
    text = diagnosis_text(diagnosed(few))
    assert "…" not in text
    assert "\n    " in text
    monkeypatch.setattr("rlvr_debug.diagnosis.report._LINES", len(text.splitlines()) - 1)
    assert "…" in diagnosis_text(diagnosed(few))


# --- the study of what was ranked, and what it costs


def test_the_cost_is_that_of_the_studys_runs_at_the_logs_own_pace(tmp_path: Path) -> None:
    run = flat(0, truncated=1.0, seconds=90.0)
    found = diagnose_log(log_of(rows_of(run)), gpus=4)
    assert found.timing.hours == pytest.approx(40 * 90 * 4 / 3600)
    # case, random rewards and the repair on three seeds, the control and the case's defect alone on five
    assert write_study(found, 1, "trl", tmp_path / "one.yaml").endswith(
        f"a study of {19 * 4:.2g} GPU-hours (19 runs of this length)"
    )
    del run["seconds"]
    said = write_study(diagnosed(run), 1, "trl", tmp_path / "other.yaml")
    assert "19 runs of this length (no seconds per step are logged" in said


@pytest.mark.parametrize("trainer", ["trl", "command"])
@pytest.mark.parametrize("slug", hypothesis_names())
def test_the_overlay_of_every_hypothesis_is_a_valid_study(
    slug: str, trainer: str, tmp_path: Path
) -> None:
    log = log_of(rows_of({**healthy(0), "learning_rate": np.zeros(40)}))
    path = tmp_path / "study.yaml"
    params = write_overlay(overlay_text(log, [slug], trainer), path)
    assert list(params.arms) == [slug]
    assert params.trainer == trainer
    assert params.cases["mine"].training["learning_rate"] == 0
    assert f"healthy run, until then {params.training.learning_rate:g}," in path.read_text()


@pytest.mark.parametrize("name", [n for n in RIGHT if RIGHT[n] and n != "hidden-prompt"])
def test_a_change_that_the_report_tries_is_tried_by_the_study_or_said_to_be_left_out(
    name: str, tmp_path: Path
) -> None:
    found = real(name)
    said = write_study(found, 0, "trl", tmp_path / "study.yaml")
    arms = load_params(ROOT / "params.yaml", tmp_path / "study.yaml").arms
    for each in found.ranked:
        setting, _, tried = each.change.partition(": try ")
        setting = setting.partition(",")[0]
        own = [{**arm.training, **arm.options} for arm in arms[each.slug].values()]
        values = [arm[setting] for arm in own if setting in arm]
        if each.change and not values:
            assert f"it does not test {each.change}" in said
        elif setting == "max_completion_length" and tried.isdigit():
            assert int(tried) in values


def test_a_log_without_a_cause_is_reported_before_its_study_is_refused(tmp_path: Path) -> None:
    study = str(tmp_path / "study.yaml")
    words = ("diagnose", str(REAL / "healthy-gsm8k"), "--overlay-out", study)
    done = called(main, "rlvr-debug", *words)
    assert done.returncode == 2
    assert "The reward rises" in done.stdout
    assert done.stderr.startswith(
        f"error: {study}: not written: no cause was ranked, so there is no "
    )


def test_completions_alone_are_said_to_lack_the_steps() -> None:
    text = diagnosis_text(diagnose(REAL / "zero-rate" / "completions.jsonl"))
    assert "add trainer_state.json" in text
    assert "Log next time" not in text


def all_said(**planted: Any) -> str:
    return " ".join(diagnosis_text(diagnosed(flat(0, **planted)), verbose=True).split())


def test_what_is_not_there_is_not_said_to_be_there() -> None:
    """A spike below the bound is no sign that spikes are absent, and where KL is 0 nothing moves away."""
    spiky = all_said(kl=np.array([0.15] * 39 + [183.0]))
    assert "kl-spikes: The largest KL of a step is 183 nats (bound 300)." in spiky
    still = all_said(kl=0.0, learning_rate=0.0)
    assert "kl-stays-zero: Not tested: the learning rate is 0, and so is the KL." in still
    assert "kl-stays-small: Not tested: KL is 0." in still


def test_a_check_costs_no_less_than_it_takes() -> None:
    """A run of 0.3 s a step was told that a check takes 1 s."""
    after = diagnosed(flat(0, grad_norm=1e-9, seconds=0.3)).ranked[0]
    assert (after.next, after.cost) == ("rlvr-debug check train.py", "3 steps and about a minute")


def test_of_a_run_that_learns_what_was_found_is_said_and_no_cause_cleared_that_a_log_may_hide() -> (
    None
):
    """It was shown nowhere; and sequence-mismatch was "not there", as no step has a KL of 300 nats."""
    found = real("healthy-musique")
    text, page = diagnosis_text(found), diagnosis_html(found)
    assert "\nFound, though the reward rises (-v): gradient-spikes.\n  In 1 row the grad" in text
    said = diagnosis_text(found, verbose=True)
    assert "\nFound, though the reward rises:\n  gradient-spikes: In " in said
    assert "Found, though" not in diagnosis_text(real("kl-blow-up"), verbose=True)
    assert page.index("<h2>Found, though the reward rises</h2>") < page.index("2.72e+03")
    assert "Within bounds:\n  The learning rate reaches 0.0004.\n  KL stays at 0.15 nats" in text
    assert "\nNo log shows a wrong mask or wrong tokens, `rlvr-debug check train.py` does." in text
    assert "300" not in text
    for slug in ("sequence-mismatch", "lora-weight-sync", "loss-aggregation", "reward-signal"):
        assert slug not in text + page
    gap = {**healthy(0), "sampler_gap": np.full(40, 0.001)}
    fine = [each.check.slug for each in in_order(diagnosed(gap), 99)]
    assert "sampler-mismatch" in fine, "what is measured itself"


@pytest.mark.parametrize(
    ("name", "first", "said"),
    [
        ("dead_groups", 0.0, "In 0% of the groups all rewards are equal"),
        ("truncated", 0.1, "The token limit cuts 10% of the replies"),
        ("truncated", 0.25, "The token limit cuts 25% of the replies"),
    ],
)
def test_a_share_of_the_first_rows_is_said_with_that_of_the_end(
    name: str, first: float, said: str
) -> None:
    """It was said that 0 % of the groups are dead, of a run that ends with none alive."""
    shares = np.array([first] * 10 + [1.0] * 30)
    text = all_said(**{name: shares}, grad_norm=np.array([3.2] * 10 + [0.0] * 30))
    assert f"{said} (first rows; last third: 100%)" in text
    assert ("no more is learned" in text) == (name == "dead_groups")
    assert "gradient-tiny: The gradient norm, where it is not 0, is 3.2 in the median." in text


# --- two logs beside each other


def test_what_tells_two_runs_apart_is_said_in_the_order_of_time() -> None:
    good, bad = real("healthy-gsm8k"), real("kl-blow-up")
    found = compare(good, bad)
    assert [each.quantity for each in found.partings][:3] == ["learning_rate", "kl", "reward"]
    assert [each.step for each in found.partings] == sorted(each.step for each in found.partings)
    assert found.alone[0] == ()
    assert "kl-explodes" in [each.check.name for each in found.alone[1]]
    text = comparison_text(found)
    assert "Found in B alone:" in text
    assert "Found in A alone:" not in text
    assert "reward-collapses (from kl-runs-away): " in text
    assert comparison_json(found)["learns"] == [True, False]
    turned = compare(bad, good)
    assert turned.alone == found.alone[::-1]
    assert turned.only == found.only[::-1]
    page = comparison_html(found)
    assert "They part first in learning_rate, from step 2 on." in page
    [section] = re.findall(r'id="partings">(.*?)</section>', page, re.S)
    assert section.count("<svg") == section.count('class="line other"') == len(found.partings)
    assert "apart from step 4; last third: A 0.0873, B 10.03" in section
    assert "Logged in B alone: tools/call_frequency, tools/failure_frequency." in page


def test_a_run_beside_itself_is_told_apart_by_nothing() -> None:
    found = compare(real("kl-blow-up"), real("kl-blow-up"))
    assert (found.partings, found.alone) == ((), ((), ()))
    assert found.both
    assert "Both logs stay close in every quantity that both have." in comparison_text(found)


def test_the_study_of_two_logs_is_refused() -> None:
    place = str(REAL / "kl-blow-up")
    done = called(main, "rlvr-debug", "diagnose", place, place, "--overlay-out", "x.yaml")
    assert done.returncode == 2
    assert "--overlay-out: found two logs" in done.stderr


# --- its page: what was found, curves with the place marked, rollouts, and nothing but text of a log's or a model's

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "look_up"}]}


def shown(diagnosis: Diagnosis, check: str) -> Any:
    [finding] = [each for each in diagnosis.findings if each.check.name == check]
    return evidence(finding, diagnosis.log)[1]


def steps(**columns: Sequence[float]) -> Log:
    rows = zip(*columns.values(), strict=True)
    told = [{"step": n, **dict(zip(columns, row, strict=True))} for n, row in enumerate(rows, 1)]
    return make_log("made-up", [Rows("JSONL", told)])


def numbers(path: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[\d.]+", path)]


def test_a_page_has_every_suspect_with_its_reason_what_refutes_it_and_its_curve() -> None:
    diagnosis = real("kl-blow-up")
    page = diagnosis_html(diagnosis)
    assert "Most likely gradient-explosion (" in page
    for each in diagnosis.ranked:
        refuted_by = each.refuted_by.replace("`", "")
        for said in (each.slug, each.next, refuted_by, each.change):
            assert said in page.replace("&#39;", "'")
    for slug in diagnosis.unseen:
        assert f'<th scope="row">{slug}</th><td>The reward does not rise' in page
    for finding in diagnosis.findings:
        if finding.status == "unchecked":
            assert f'<th scope="row">{finding.check.name}</th>' in page
    [section] = re.findall(r'id="kl-runs-away">(.*?)</section>', page, re.S)
    assert section.count("<svg") == 2
    assert section.count('class="band"') == 2
    assert "steps 56 to 80: median 7.25" in section


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    one, other = real("kl-blow-up"), real("healthy-gsm8k")
    for page in (diagnosis_html(one), comparison_html(compare(other, one))):
        assert not re.search(r"<script|<img|<link|(?:src|href)=|url\(|@import", page)
        assert "default-src 'none'" in page.replace("&#39;", "'")


def test_what_a_log_and_a_model_say_is_text() -> None:
    rows = [{"step": n, "reward": 0.5, f"rewards/{EVIL}/mean": 0.5} for n in range(1, 13)]
    said = [
        {"step": 1, "prompt": EVIL, "completion": json.dumps([CALL | {"content": EVIL}])},
        {"step": 1, "prompt": EVIL, "completion": EVIL},
    ]
    log = make_log(EVIL, [Rows("JSONL", rows), Rows("JSONL", said)])
    one = diagnose_log(log, gpus=0)
    for page in (diagnosis_html(one), comparison_html(compare(one, real("kl-blow-up")))):
        assert not re.search("<script|<img", page)
        assert "&lt;script&gt;" in page


def test_rollouts_that_a_check_names_are_those_that_show_it_with_the_place_marked() -> None:
    calls = shown(real("kl-blow-up"), "unanswered-calls")
    assert calls
    for each in calls:
        assert each.shows
        [*before, (who, [(last, marked)])] = each.turns
        assert (who, marked) == ("completion, assistant", True)
        assert "<tool_call>" in last or "function" in last
        assert not any(mark for _, pieces in before for _, mark in pieces)
    copies = shown(real("duplicates"), "duplicates")
    assert len({each.turns for each in copies}) == 1
    assert len(copies) == 4


def test_rollouts_of_the_step_nearest_to_the_place_stand_beside_a_curve() -> None:
    late = shown(real("kl-blow-up"), "kl-runs-away")
    assert [each.step for each in late] == [72, 72]
    assert not any(each.shows for each in late)
    least, most = (each.reward for each in late)
    assert least < most


def test_what_tools_say_alike_is_marked_and_nothing_beside_it() -> None:
    tool = {"role": "tool", "content": "  no such document\n"}
    talk = json.dumps([CALL, tool, {"role": "assistant", "content": "so no such document"}])
    rows = [{"step": 1, "prompt": f"p{n}", "completion": talk} for n in range(8)]
    diagnosis = diagnose_log(make_log("made-up", [Rows("JSONL", rows)]), gpus=0)
    alike = shown(diagnosis, "tools-alike")
    [first, *_] = alike
    marked = [text for _, pieces in first.turns for text, mark in pieces if mark]
    assert set(marked) == {"no such document"}


@pytest.mark.parametrize(
    ("at", "places", "value"),
    [
        ("start", [(1, 2)], 1.5),
        ("end", [(9, 12)], 10.5),
        ("ends", [(1, 4), (9, 12)], 10.5),
        ("largest", [(12, 12)], 12),
        ("run", [(1, 12)], 6.5),
    ],
)
def test_the_rows_that_a_check_looks_at_are_the_ones_marked(
    at: str, places: list[tuple[float, float]], value: float
) -> None:
    mark = curve(steps(kl=range(1, 13)), "kl", at).mark
    assert mark is not None
    assert (list(mark.spans), mark.value) == (places, value)


@pytest.mark.parametrize(
    "values", [[0.5], [0.0] * 6, [1e-300, 1e300] * 4, [0.0] * 9 + [1e6], [-5.0, 5.0], [3e4] * 5]
)
def test_a_curve_of_any_values_is_drawn_inside_its_box(values: list[float]) -> None:
    log = steps(kl=values)
    chart = drawn([curve(log, "kl", "run")])
    places = np.array(numbers(chart.lines[0].removesuffix("h2"))).reshape(-1, 2)
    assert len(places) == log.series("kl").size > 0
    assert (places >= 0).all()
    assert (places <= [WIDTH, HEIGHT]).all()
    assert chart.level is not None
    assert 0 <= chart.level <= HEIGHT
    assert chart.band is not None
    assert all(0 <= place <= HEIGHT for place, _ in chart.yticks)


def test_a_long_curve_is_a_short_line_that_keeps_its_spike() -> None:
    norms = [9.0 if n == 31_234 else 1.0 for n in range(50_000)]
    chart = drawn([curve(steps(grad_norm=norms), "grad_norm", "largest")])
    assert len(chart.lines[0]) < 20_000
    heights = np.array(numbers(chart.lines[0])).reshape(-1, 2)[:, 1]
    assert chart.level == pytest.approx(heights.min(), abs=0.1)


def test_a_page_is_written_whole_or_its_name_is_refused_before_a_log_is_read(
    tmp_path: Path,
) -> None:
    place, file = str(REAL / "duplicates"), tmp_path / "new" / "page.html"
    for option in ("--html", "--overlay-out"):
        done = called(main, "rlvr-debug", "diagnose", "no-such-log", option, str(file))
        assert done.stderr.startswith(
            f"error: {option}: {file} is in {file.parent}, which does not "
        )
        assert not file.parent.exists()
    file.parent.mkdir()
    for words in ([place], [place, str(REAL / "healthy-gsm8k")]):
        done = called(main, "rlvr-debug", "diagnose", *words, "--html", str(file))
        assert (done.returncode, done.stderr) == (0, f"{file}: written\n")
        assert file.read_text(encoding="utf-8").rstrip().endswith("</html>")
        assert [each.name for each in file.parent.iterdir()] == ["page.html"]
    done = called(main, "rlvr-debug", "diagnose", "no-such-log", "--html", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --html: {tmp_path} is a folder, ")
