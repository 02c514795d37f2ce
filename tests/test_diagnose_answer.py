"""What a terminal shows of a diagnosis, the study that it writes, and what two logs differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.checks import STANDS_OUT
from rlvr_debug.diagnosis.compare import compare, comparison_json, comparison_text
from rlvr_debug.diagnosis.rank import Diagnosis, diagnose, diagnose_log
from rlvr_debug.diagnosis.report import diagnosis_text, in_order, reward_text
from rlvr_debug.errors import InputError
from rlvr_debug.logs.log import make_log, read_log
from rlvr_debug.logs.structured import Rows
from rlvr_debug.report.diagnosis_page import diagnosis_html
from rlvr_debug.study.diagnosed import overlay_text, write_overlay, write_study
from rlvr_debug.study.params import load_params
from tests.in_process import called
from tests.test_diagnose import PLANTED, REAL, RIGHT, SEEDS, healthy, log_of, rows_of


def flat(seed: int, **planted: Any) -> dict[str, Any]:
    noise = 0.01 * np.random.default_rng(seed).standard_normal(40)
    return {**healthy(seed), "reward": 0.3 + noise, **planted}


def fits(found: Diagnosis) -> None:
    lines = diagnosis_text(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", RIGHT)
def test_the_answer_to_a_real_log_fits_a_terminal(name: str) -> None:
    fits(diagnose_log(read_log(REAL / name), gpus=0))


@given(
    seed=SEEDS,
    planted=st.sets(st.sampled_from(sorted(PLANTED)), min_size=1),
    drop=st.sets(st.sampled_from(sorted(set(healthy(0)) - {"step", "reward"})), max_size=8),
)
@settings(max_examples=15)
def test_the_answer_to_any_log_fits_a_terminal_and_ranks_evidence_alone(
    seed: int, planted: set[str], drop: set[str]
) -> None:
    run = flat(seed, **{PLANTED[n][0]: np.full(40, PLANTED[n][2]) for n in planted})
    found = diagnose_log(log_of(rows_of({k: v for k, v in run.items() if k not in drop})))
    fits(found)
    chances = [each.probability for each in found.ranked]
    assert chances == sorted(chances, reverse=True)
    assert all(
        0 < chance < 1 and each.findings for chance, each in zip(chances, found.ranked, strict=True)
    )
    assert found.stands_out == (bool(chances) and chances[0] >= STANDS_OUT)
    assert set(to_log(found.findings, found.log)).isdisjoint(found.log.sources.values())


@pytest.mark.parametrize("size", [9, 12, 40, 120])
def test_the_reward_is_given_with_students_interval(size: int) -> None:
    rewards = np.random.default_rng(size).random(size)
    found = diagnose_log(log_of(rows_of({"step": np.arange(size), "reward": rewards})))
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
    ],
)
def test_the_rows_that_are_cited_are_those_that_are_spoken_of(
    quantity: str, values: list[float], rows: str
) -> None:
    run = {"step": np.arange(1, 41), quantity: np.array(values)}
    found = diagnose_log(log_of(rows_of({"reward": np.full(40, 0.3), **run})))
    [said] = [r.rows for r in found.ranked if r.rows.startswith(found.log.sources[quantity])]
    assert said.endswith(f", {rows}")


def test_a_reward_rises_by_what_rollouts_differ_by_however_far_from_0_it_is() -> None:
    rewards = 0.75 + np.repeat([0.0, 0.01, 0.02], 15) + 0.002 * np.sin(np.arange(45))
    run = {"step": np.arange(45), "reward": rewards}
    alone = diagnose_log(log_of(rows_of(run)))
    beside = diagnose_log(log_of(rows_of({**run, "reward_std": np.full(45, 0.07)})))
    assert (alone.learns, beside.learns) == (False, True)


def test_a_run_that_learns_is_not_said_to_have_nothing_to_learn_from() -> None:
    run = {"step": np.arange(40), "dead_groups": np.full(40, 0.8), "truncated": np.full(40, 0.95)}
    learning = {**run, "reward": np.linspace(0.2, 0.9, 40)}
    assert diagnose_log(log_of(rows_of({**run, "reward": np.full(40, 0.3)}))).ranked
    assert diagnose_log(log_of(rows_of(learning))).ranked == ()


def test_a_log_of_rewards_alone_names_their_parts_and_no_cause() -> None:
    random = np.random.default_rng(0)
    rows = [
        {
            "step": n,
            "reward": a + 0.5 * b,
            "retrieval_reward": a,
            "attack_reward": b,
            "gpu": 60 + b * a,
        }
        for n, (a, b) in enumerate(random.random((40, 2)), start=1)
    ]
    found = diagnose_log(log_of(rows))
    assert list(found.log.parts) == ["attack_reward", "retrieval_reward"]
    assert (found.ranked, found.log.unknown) == ((), ("gpu",))
    text = diagnosis_text(found)
    assert "reward, attack_reward, retrieval_reward are all that is logged" in text.replace(
        "\n", " "
    )
    assert "Its parts: attack_reward 0.4" in text
    assert len(to_log(found.findings, found.log)) == 3
    # columns of the same names that do not add up to the reward are none of its parts
    other = [{**row, "reward": x} for row, x in zip(rows, random.random(40), strict=True)]
    assert log_of(other).parts.empty


def test_nothing_is_asked_for_that_is_logged_or_that_the_trainer_cannot_log() -> None:
    run = flat(0)
    one_part = {**run, "step": run["step"]}
    for name in ("sampler_gap", "tool_calls", "tool_failures"):
        del one_part[name]
    rows = [
        {**row, "rewards/only/mean": row["reward"], "rewards/only/std": 0.1}
        for row in rows_of(one_part, {"reward": "reward"})
    ]
    found = diagnose_log(log_of(rows))
    asked = to_log(found.findings, found.log)
    assert not any("rewards/" in name or "tools/" in name for name in asked)
    assert len(asked) == len(set(asked))
    missing = {f.check.name: f.missing for f in found.findings}
    assert missing["dead-part"] == ("two reward functions or more: this run has one",)


def written(folder: Path, run: dict[str, Any], **told: Any) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows_of(run))
    (folder / "metrics.jsonl").write_text(text)
    (folder / "training_args.json").write_text(json.dumps(told))
    return folder


def test_what_to_change_is_named_with_the_value_of_the_runs_own_settings(tmp_path: Path) -> None:
    cut = flat(0, truncated=np.full(40, 1.0))
    found = diagnose(written(tmp_path, cut, max_completion_length=256))
    assert found.ranked[0].change == "max_completion_length, now 256: try 512"
    assert "Change: max_completion_length, now 256: try 512" in diagnosis_text(found)
    verl = {"actor/lr": 1e-6, "critic/score/mean": 0.3, "response_length/clip_ratio": 0.95}
    rows = [{"training/global_step": n, **verl, "response_length/max": 256.0} for n in range(1, 41)]
    there = diagnose_log(log_of(rows)).ranked[0]
    assert there.change == "data.max_response_length, now 256: try 512"
    assert "twice `data.max_response_length`" in there.refuted_by


def test_what_the_settings_mean_is_no_finding(tmp_path: Path) -> None:
    still = flat(0, kl=np.zeros(40))
    assert "kl-stays-zero" in diagnose(written(tmp_path, still, beta=0.04)).ranked[0].checks
    meant = diagnose(written(tmp_path, still, beta=0))
    assert meant.ranked == ()
    [said] = [f for f in meant.findings if f.check.name == "kl-stays-zero"]
    assert (said.status, said.shown.sentence) == ("fine", "`beta` is 0, so this is intended.")


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


def test_files_that_were_written_are_said_with_what_to_type_next(tmp_path: Path) -> None:
    page, overlay = tmp_path / "page.html", tmp_path / "mine.yaml"
    done = called(
        main,
        "rlvr-debug",
        "diagnose",
        str(REAL / "zero-rate"),
        "--html",
        str(page),
        "--overlay-out",
        str(overlay),
    )
    assert f"{page}: written" in done.stderr
    assert f"rlvr-debug plan --overlay {overlay}" in done.stderr


def test_a_weight_that_carries_the_policy_off_while_nothing_changes_is_an_old_sampler() -> None:
    """Who samples from old weights writes and earns what it did, however far the policy is from its reference."""
    run = {**flat(0), "kl": np.linspace(0, 4, 40), "loss": 0.04 * np.linspace(0, 4, 40)}
    del run["sampler_gap"]
    first = diagnose_log(log_of(rows_of(run))).ranked[0]
    assert (first.slug, first.checks[0]) == ("lora-weight-sync", "moves-in-vain")
    fallen = {**run, "reward": np.linspace(0.3, 0.1, 40)}
    assert diagnose_log(log_of(rows_of(fallen))).ranked[0].slug == "gradient-explosion"


def test_a_run_that_learns_is_blamed_for_nothing_that_is_mild() -> None:
    found = diagnose_log(log_of(rows_of({**healthy(0), "truncated": np.full(40, 0.3)})))
    assert found.ranked == ()
    assert "No cause stands out." in diagnosis_text(found)
    assert make_log("made-up", [Rows("JSONL", rows_of(healthy(0)))]).settings == {}


# --- the study of what was ranked, and what it costs


def test_the_cost_is_that_of_the_studys_runs_at_the_logs_own_pace(tmp_path: Path) -> None:
    run = {**healthy(0), "truncated": np.full(40, 1.0), "seconds": np.full(40, 90.0)}
    run["reward"] = healthy(0)["dead_groups"]  # it does not learn
    found = diagnose_log(log_of(rows_of(run)), gpus=4)
    assert found.timing.hours == pytest.approx(40 * 90 * 4 / 3600)
    # case, random rewards and the repair on three seeds, the control and the case's defect alone on five
    assert write_study(found, 1, "trl", tmp_path / "one.yaml").endswith(
        f"a study of {19 * 4:.2g} GPU-hours (19 runs of this length)"
    )
    del run["seconds"]
    untimed = diagnose_log(log_of(rows_of(run)))
    said = write_study(untimed, 1, "trl", tmp_path / "other.yaml")
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


@pytest.mark.parametrize("name", RIGHT)
def test_a_change_that_the_report_tries_is_tried_by_the_study_or_said_to_be_left_out(
    name: str, tmp_path: Path
) -> None:
    found = diagnose(REAL / name)
    if not found.ranked:
        return
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
    done = called(
        main, "rlvr-debug", "diagnose", str(REAL / "healthy-gsm8k"), "--overlay-out", study
    )
    assert done.returncode == 2
    assert "The reward rises" in done.stdout
    assert done.stderr == (
        f"error: {study}: not written: no cause was ranked; write one: docs/start.md\n"
    )


def test_completions_alone_are_said_to_lack_the_steps(tmp_path: Path) -> None:
    found = diagnose(REAL / "zero-rate" / "completions.jsonl")
    assert "add trainer_state.json" in diagnosis_text(found)
    assert "Log next time" not in diagnosis_text(found)


def test_what_is_not_there_is_not_said_to_be_there(tmp_path: Path) -> None:
    """A spike below the bound is no sign that spikes are absent, and where KL is 0 nothing moves away."""
    spiky = {**flat(0), "kl": np.array([0.15] * 39 + [183.0])}
    text = diagnosis_text(diagnose_log(log_of(rows_of(spiky))), verbose=True)
    assert "kl-spikes: The largest KL of a step is 183 nats (bound 300)." in text
    still = {**flat(0), "kl": np.zeros(40), "learning_rate": np.zeros(40)}
    said = diagnosis_text(diagnose_log(log_of(rows_of(still))), verbose=True)
    assert "kl-stays-zero: Not tested: the learning rate is 0, and so is the KL." in said
    assert "kl-stays-small: Not tested: KL is 0." in said


def test_one_row_is_not_rows() -> None:
    def said(**planted: Any) -> str:
        found = diagnose_log(log_of(rows_of({**flat(0), **planted})))
        return " ".join(diagnosis_text(found, verbose=True).split())

    norms = np.array([0.3] * 39 + [3000.0])
    spiky = said(grad_norm=norms, kl=norms)
    assert "In 1 row the gradient norm is far above all others" in spiky
    assert "In 1 step the KL is far above all others" in spiky
    assert "NaN or infinity was logged: loss in 1 row" in said(loss=np.append(norms[1:], np.inf))


def test_what_could_not_be_checked_is_said_with_the_setting_and_the_reason() -> None:
    found = diagnose(REAL / "truncation")
    missing = {each.check.name: each.missing for each in found.findings}
    assert missing["sampler-gap"] == ("sampling/sampling_logp_difference/mean (use_vllm=True)",)
    one = "two reward functions or more: this run has one"
    assert missing["parts-conflict"] == missing["dead-part"] == (one,)
    # it has rows enough, and a reward that is constant
    assert missing["scale-uneven"] == ("logged, but in too few rows, or always the same",)
    assert "completions with their reward (log_completions=True)" in {
        each for f in diagnose_log(log_of(rows_of(flat(0)))).findings for each in f.missing
    }


def test_a_check_costs_no_less_than_it_takes() -> None:
    """A run of 0.3 s a step was told that a check takes 1 s."""
    still = {**flat(0), "grad_norm": np.full(40, 1e-9), "seconds": np.full(40, 0.3)}
    after = diagnose_log(log_of(rows_of(still))).ranked[0].next
    assert (after.what, after.cost) == ("rlvr-debug check train.py", "3 steps and about a minute")


def test_what_was_found_though_the_reward_rises_is_said() -> None:
    """It was found, and shown nowhere."""
    found = diagnose(REAL / "healthy-musique", gpus=0)
    assert "\nFound, though the reward rises (-v): gradient-spikes.\n" in diagnosis_text(found)
    said = diagnosis_text(found, verbose=True)
    assert "\nFound, though the reward rises:\n  gradient-spikes: In " in said
    assert "Found, though" not in diagnosis_text(diagnose(REAL / "kl-blow-up"), verbose=True)
    page = diagnosis_html(found)
    assert page.index("<h2>Found, though the reward rises</h2>") < page.index("2.72e+03")


def test_a_check_that_is_fine_clears_no_cause_that_a_log_may_hide() -> None:
    """Sequence-mismatch was "not there", as no step has a KL of 300 nats."""
    found = diagnose(REAL / "healthy-musique", gpus=0)
    text = diagnosis_text(found)
    assert "Within bounds:\n  The learning rate reaches 0.0004.\n  KL stays at 0.15 nats" in text
    assert "\nNo log shows a wrong mask or wrong tokens, `rlvr-debug check train.py` does." in text
    assert "300" not in text
    page = diagnosis_html(found)
    for slug in ("sequence-mismatch", "lora-weight-sync", "loss-aggregation", "reward-signal"):
        assert slug not in text + page
    gap = {**healthy(0), "sampler_gap": np.full(40, 0.001)}
    fine = [each.check.slug for each in in_order(diagnose_log(log_of(rows_of(gap))), 99)]
    assert "sampler-mismatch" in fine, "what is measured itself"


@pytest.mark.parametrize(
    ("name", "first", "said"),
    [
        (
            "dead_groups",
            0.0,
            "In 0% of the groups all rewards are equal (first rows; last third: 100%).",
        ),
        (
            "truncated",
            0.1,
            "The token limit cuts 10% of the replies (first rows; last third: 100%).",
        ),
        (
            "truncated",
            0.25,
            "The token limit cuts 25% of the replies (first rows; last third: 100%), at ",
        ),
    ],
)
def test_a_share_of_the_first_rows_is_said_with_that_of_the_end(
    name: str, first: float, said: str
) -> None:
    """It was said that 0 % of the groups are dead, of a run that ends with none alive."""
    shares = np.array([first] * 10 + [1.0] * 30)
    norms = np.array([3.2] * 10 + [0.0] * 30)
    found = diagnose_log(log_of(rows_of({**flat(0), "grad_norm": norms, name: shares})))
    assert any(each.shown.sentence.startswith(said) for each in found.findings)
    text = " ".join(diagnosis_text(found, verbose=True).split())
    assert ("no more is learned" in text) == (name == "dead_groups")
    assert "gradient-tiny: The gradient norm, where it is not 0, is 3.2 in the median." in text


def test_an_overlay_is_never_written_over_another_file(tmp_path: Path) -> None:
    text = overlay_text(log_of(rows_of(healthy(0))), ["kl-penalty"], "trl")
    path = tmp_path / "mine.yaml"
    write_overlay(text, path)
    load_params(ROOT / "params.yaml", path)
    with pytest.raises(InputError, match=r"mine\.yaml: the file exists"):
        write_overlay("study: other\n", path)
    assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


# --- two logs beside each other


def test_what_tells_two_runs_apart_is_said_in_the_order_of_time() -> None:
    good, bad = (
        diagnose_log(read_log(REAL / name), gpus=0) for name in ("healthy-gsm8k", "kl-blow-up")
    )
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


def test_a_run_beside_itself_is_told_apart_by_nothing() -> None:
    one = diagnose_log(read_log(REAL / "kl-blow-up"), gpus=0)
    found = compare(one, one)
    assert (found.partings, found.alone) == ((), ((), ()))
    assert found.both
    assert "Both logs stay close in every quantity that both have." in comparison_text(found)


def test_the_study_of_two_logs_is_refused() -> None:
    place = str(REAL / "kl-blow-up")
    done = called(main, "rlvr-debug", "diagnose", place, place, "--overlay-out", "x.yaml")
    assert done.returncode == 2
    assert "--overlay-out: found two logs" in done.stderr
