"""What diagnose makes of logs: properties on made-up ones, and what real runs of TRL's trainer must give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvr_debug.causes.check import log_checks
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.rank import Diagnosis, diagnose, diagnose_log, reward_rises
from rlvr_debug.diagnosis.report import diagnosis_json, diagnosis_text
from rlvr_debug.logs.log import make_log
from rlvr_debug.logs.names import NAMES
from rlvr_debug.logs.structured import Rows
from rlvr_debug.study.params import load_params
from tests.in_process import called

REAL = ROOT / "tests" / "logs"
RIGHT = yaml.safe_load((REAL / "right.yaml").read_text(encoding="utf-8"))
SEEDS = st.integers(0, 2**32 - 1)
SHARES = ("dead_groups", "truncated", "clipped", "tool_failures")


def healthy(seed: int, rows: int = 40) -> dict[str, np.ndarray[Any, Any]]:
    """By quantity: a run that learns, with everything logged and nothing wrong."""
    rng = np.random.default_rng(seed)

    def around(value: float, spread: float) -> np.ndarray[Any, Any]:
        return np.asarray(value + spread * rng.standard_normal(rows))

    return {
        "step": np.arange(1, rows + 1, dtype=float),
        "reward": np.linspace(0.2, 0.7, rows) + around(0, 0.02),
        "reward_std": around(0.3, 0.01),
        "dead_groups": around(0.2, 0.02),
        "length": around(100, 5),
        "length_max": around(200, 5),
        "truncated": around(0.05, 0.005),
        "kl": np.linspace(0, 0.05, rows),
        "entropy": np.linspace(0.9, 0.6, rows),
        "grad_norm": np.exp(around(-1, 0.2)),
        "learning_rate": np.full(rows, 1e-5),
        "clipped": around(0.01, 0.001),
        "loss": around(0, 0.01),
        "sampler_gap": around(0.005, 0.0005),
        "tool_calls": around(2, 0.05),
        "tool_failures": around(0.05, 0.005),
        "seconds": around(12, 0.5),
    }


def flat(seed: int, **planted: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A healthy run whose reward does not rise, with what is planted in all of its rows or row by row."""
    noise = 0.01 * np.random.default_rng(seed).standard_normal(40)
    values = {name: np.broadcast_to(value, 40) for name, value in planted.items()}
    return {**healthy(seed), "reward": 0.3 + noise, **values}


# what is planted in it, and the hypotheses of which one must be ranked first
PLANTED: Mapping[str, tuple[str, str, float]] = {
    "dead groups": ("dead_groups", "group-construction", 0.95),
    "truncation": ("truncated", "context-truncation", 0.95),
    "no learning rate": ("learning_rate", "optimizer-no-op", 0.0),
    "KL blow-up": ("kl", "kl-penalty", 10.0),
    # from the first row on, of which no reference is the reason
    "KL of tokens that the policy would not write": ("kl", "hidden-context", 1e4),
    "large gradients": ("grad_norm", "gradient-explosion", 1e4),
    # of another context and another sequence no log tells which
    "sampler off": ("sampler_gap", "hidden-context sequence-mismatch", 1.4),
}


def rows_of(
    columns: Mapping[str, Any], rename: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    names = {
        name: (rename or {}).get(name, NAMES[name][next(iter(NAMES[name]))][0]) for name in columns
    }
    size = len(next(iter(columns.values())))
    return [{names[name]: float(columns[name][i]) for name in columns} for i in range(size)]


def log_of(rows: list[dict[str, Any]]) -> Any:
    return make_log("made-up", [Rows("JSONL", rows)])


def diagnosed(columns: Mapping[str, Any]) -> Diagnosis:
    return diagnose_log(log_of(rows_of(columns)))


def said(rows: list[dict[str, Any]]) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(r.slug, r.strength, r.checks) for r in diagnose_log(log_of(rows)).ranked]


@cache
def real(name: str) -> Diagnosis:
    """The diagnosis of a real run of TRL's trainer, without a GPU."""
    return diagnose(REAL / name, gpus=0)


def fits(found: Diagnosis) -> None:
    lines = diagnosis_text(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_every_check_has_a_name_and_a_place_of_its_own() -> None:
    assert len({check.name for check in log_checks()}) == len(log_checks())
    assert len({check.order for check in log_checks()}) == len(log_checks())


# --- properties


@given(SEEDS)
@settings(max_examples=20)
def test_a_run_that_learns_with_nothing_wrong_gives_no_experiment(seed: int) -> None:
    assert said(rows_of(healthy(seed))) == []


@pytest.mark.parametrize("planted", PLANTED)
@given(
    seed=SEEDS,
    drop=st.sets(st.sampled_from(sorted(set(healthy(0)) - {"step", "reward"})), max_size=8),
)
@example(seed=0, drop={"sampler_gap"})
@settings(max_examples=6)
def test_a_planted_problem_is_ranked_first_whatever_else_is_logged(
    planted: str, seed: int, drop: set[str]
) -> None:
    column, slug, value = PLANTED[planted]
    run = flat(seed, **{column: value})
    kept = {name: values for name, values in run.items() if name == column or name not in drop}
    assert said(rows_of(kept))[0][0] in slug.split()


@given(seed=SEEDS, data=st.data(), column=st.sampled_from(sorted(PLANTED)))
@settings(max_examples=12)
def test_renaming_columns_by_any_alias_changes_no_finding(
    seed: int, data: st.DataObject, column: str
) -> None:
    quantity, _, value = PLANTED[column]
    run = {**healthy(seed), quantity: np.full(40, value)}
    names = {
        name: data.draw(st.sampled_from([n for each in NAMES[name].values() for n in each]))
        for name in run
    }
    assert said(rows_of(run, names)) == said(rows_of(run))


@given(seed=SEEDS, shuffle=st.randoms(use_true_random=False))
@settings(max_examples=8)
def test_the_order_of_rows_and_columns_changes_nothing(seed: int, shuffle: Any) -> None:
    rows = rows_of({**healthy(seed), "truncated": np.full(40, 0.6)})
    other = [dict(shuffle.sample(list(row.items()), len(row))) for row in rows]
    shuffle.shuffle(other)
    one, two = log_of(rows), log_of(other)
    pd.testing.assert_frame_equal(one.steps, two.steps, check_like=True)
    assert said(rows) == said(other)


@given(seed=SEEDS, scale=st.sampled_from([1e-3, 0.1, 10.0, 1e4]))
@settings(max_examples=8)
def test_the_unit_of_the_reward_changes_no_finding(seed: int, scale: float) -> None:
    run = {**healthy(seed), "dead_groups": np.full(40, 0.8)}
    scaled = {**run, "reward": scale * run["reward"], "reward_std": scale * run["reward_std"]}
    assert said(rows_of(run)) == said(rows_of(scaled))


@given(seed=SEEDS, name=st.sampled_from(SHARES), low=st.floats(0, 1), high=st.floats(0, 1))
@settings(max_examples=30)
def test_a_larger_share_is_never_the_weaker_finding(
    seed: int, name: str, low: float, high: float
) -> None:
    def strength(share: float) -> int:
        log = log_of(rows_of({**healthy(seed), name: np.full(40, share)}))
        own = [each for each in log_checks() if (name,) in each.needs]
        return max(found.strength for each in own if (found := each.on(log)))

    low, high = min(low, high), max(low, high)
    assert strength(low) <= strength(high)


@given(seed=SEEDS)
@settings(max_examples=15)
def test_noise_is_no_learning_and_a_quick_rise_is(seed: int) -> None:
    noise = 0.02 * np.random.default_rng(seed).standard_normal(40)
    quick = 0.9 + noise
    quick[:4] -= [0.6, 0.5, 0.4, 0.2]
    for rewards, rises in ((0.3 + noise, False), (quick, True)):
        assert reward_rises(log_of(rows_of({**healthy(seed), "reward": rewards}))) is rises


@given(seed=SEEDS)
@settings(max_examples=8)
def test_a_schedule_that_ended_is_named_though_the_reward_rose_before(seed: int) -> None:
    run = healthy(seed)
    run["reward"] = np.repeat([0.3, 0.5], [10, 30]) + 0.02 * np.random.default_rng(seed).random(40)
    run["learning_rate"] = np.repeat([1e-6, 0.0], [10, 30])
    found = diagnosed(run)
    assert found.learns
    assert [each.checks for each in found.ranked] == [("schedule-ended",)]
    # groups die in a run that learns, too
    run |= {"learning_rate": np.full(40, 1e-6), "entropy": np.repeat([1.0, 0.01], 20)}
    run["dead_groups"] = np.repeat([0.1, 0.9], 20)
    assert diagnosed(run).ranked == ()
    run["reward"] = flat(seed)["reward"]
    assert diagnosed(run).ranked[0].checks[0] == "entropy-collapses"


def test_a_loss_of_zero_is_a_note_and_no_finding() -> None:
    found = diagnosed({**healthy(0), "loss": np.zeros(40)})
    assert found.ranked == ()
    assert "a loss near 0 is harmless" in diagnosis_text(found)


def test_a_cause_without_evidence_is_never_ranked_and_is_named_as_what_no_log_shows() -> None:
    run = flat(0)
    seen = diagnosed(run)
    del run["sampler_gap"]
    blind = diagnosed(run)
    assert (seen.ranked, blind.ranked) == ((), ())
    assert blind.unseen[:2] == ("hidden-context", "sequence-mismatch")
    # where sampler and trainer agree neither is suspected
    assert not {"hidden-context", "sequence-mismatch", "sampler-mismatch"} & {*seen.unseen}
    text = diagnosis_text(blind).replace("\n", " ")
    assert "the sampler's log-probabilities (use_vllm=True)" in text


def test_the_original_s_own_keys_speak_for_advantage_scaling_first() -> None:
    logged = {
        "train/grad_norm": 200.0,
        "debug/reward_std": 0.04,
        "debug/advantage_max": 25.0,
        "debug/advantage_mean": 6.0,
        "debug/kl_mean": 0.002,
        "debug/context_length_truncation_rate": 0.05,
    }
    rewards = 2 * flat(0)["reward"]
    rows = [{"_step": n, "train/reward": r, **logged} for n, r in enumerate(rewards, start=1)]
    found = diagnose_log(log_of(rows))
    assert found.ranked[0].slug == "advantage-scaling"
    assert found.ranked[0].checks[0] == "advantages-too-large"
    assert "An advantage is 25 where rewards deviate by 0.04" in found.ranked[0].reason
    assert not found.log.unknown


def test_equal_rewards_that_follow_from_cut_replies_are_a_symptom() -> None:
    found = diagnosed(flat(0, truncated=1.0, dead_groups=1.0, reward=0.3))
    assert found.ranked[0].slug == "context-truncation"
    explained = {each.check.name: each.explained_by for each in found.findings if each.explained_by}
    assert explained["dead-groups"] == "truncation"
    refuted = "twice `max_completion_length` leaves as many replies cut."
    assert f"Not this if {refuted}" in diagnosis_text(found)
    assert diagnosis_json(found)["ranked"][0]["refuted_by"] == refuted


# --- completions


def completions(rows: list[tuple[int, str, str, float]]) -> list[dict[str, Any]]:
    return [
        {"step": s, "prompt": p, "completion": c, "score_of_task": r, "advantage": 0.0}
        for s, p, c, r in rows
    ]


def test_copies_equal_rewards_and_advantages_of_other_groups_are_told_apart() -> None:
    same = completions([(1, f"p{i}", "x", i % 2) for i in range(8) for _ in range(4)])
    different = completions([(1, f"p{i}", f"x{j}", i % 2) for i in range(8) for j in range(4)])
    assert said(same)[0][0] == "group-construction"
    assert said(different)[0][0] == "reward-signal"
    off = completions([(1, f"p{i}", f"x{j}", float(j == 0)) for i in range(8) for j in range(4)])
    for place, row in enumerate(off):
        row["advantage"] = 1.5 if place % 4 == 0 else 0.5
    assert "group-means" in {slug: names for slug, _, names in said(off)}["group-construction"]


def test_conversations_that_end_in_a_tool_call_are_cut_whatever_the_clipped_ratio_says() -> None:
    call = json.dumps([{"role": "assistant", "tool_calls": [{"name": "look_up"}], "content": ""}])
    answer = json.dumps([*json.loads(call), {"role": "assistant", "content": "x"}])
    steps = Rows("JSONL", rows_of({**healthy(0), "truncated": np.zeros(40)}))

    def ranked(text: str) -> list[str]:
        rows = completions([(1, f"p{i}", text, 0.0) for i in range(8) for _ in range(4)])
        log = make_log("made-up", [steps, Rows("JSONL", rows)])
        return [each.slug for each in diagnose_log(log).ranked]

    assert ranked(call)[0] == "context-truncation"
    assert "context-truncation" not in ranked(answer)


# --- real runs of TRL's trainer


@pytest.mark.parametrize("name", RIGHT)
def test_a_real_log_is_read_whole_and_what_was_planted_there_alone_is_ranked_first(
    name: str,
) -> None:
    found = real(name)
    log = found.log
    assert log.kind == "trainer_state.json and JSONL"
    assert len(log.steps) >= 40
    assert len(log.completions) == 64
    assert log.has("reward", "grad_norm", "learning_rate", "seconds")
    assert json.loads(json.dumps(diagnosis_json(found), allow_nan=False))["rows"] == len(log.steps)
    assert diagnosis_text(found).startswith(str(REAL / name))
    fits(found)
    slugs = [each.slug for each in found.ranked]
    if name == "hidden-prompt":  # without a sampler's log-probabilities nothing shows it
        assert (slugs, found.unseen[0]) == ([], *RIGHT[name])
    else:
        assert slugs[0] in RIGHT[name] if RIGHT[name] else slugs == []


def test_the_command_prints_text_json_and_one_line_for_bad_input(tmp_path: Path) -> None:
    def run(*arguments: str) -> CompletedProcess[str]:
        return called(main, "rlvr-debug", "diagnose", *arguments)

    overlay, page = tmp_path / "o.yaml", tmp_path / "page.html"
    told = [str(REAL / "zero-rate"), "--overlay-out", str(overlay), "--html", str(page)]
    done = run(*told, "--json", "--gpus", "0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranked"][0]["hypothesis"] == "optimizer-no-op"
    assert f"{page}: written" in done.stderr
    assert f"rlvr-debug plan --overlay {overlay}" in done.stderr
    assert load_params(ROOT / "params.yaml", overlay).trainer == "trl"
    text = overlay.read_bytes()
    again = run(*told[:-1], str(tmp_path / "not-written.html"), "--json")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.splitlines()[-1].startswith(f"error: {overlay}: the file exists")
    assert overlay.read_bytes() == text
    assert {*tmp_path.iterdir()} == {overlay, page}
    assert (
        run(str(REAL / "healthy-musique")).stdout
        == f"{diagnosis_text(diagnose(REAL / 'healthy-musique'))}\n"
    )
    missing = run(str(tmp_path / "none.csv"))
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


# --- what a person would point at


def test_single_steps_with_an_absurd_kl_are_spoken_of_and_nothing_logged_is_asked_for() -> None:
    """A missing generation prompt under dr_grpo and a beta of 0.04, in verl's names."""
    kl = np.full(40, 0.03)
    kl[[6, 18, 32]] = 900.0, 8600.0, 900.0
    columns = flat(0, kl=kl, loss=0.04 * kl, learning_rate=1e-6, sampler_kl=0.001)
    columns["grad_norm"] = np.where(kl > 1, 4.2 * kl, columns["grad_norm"])
    kept = ("step", "reward", "kl", "grad_norm", "loss", "learning_rate", "sampler_kl")
    verl = {name: NAMES[name]["verl"][0] for name in kept}
    rows = rows_of({name: columns[name] for name in kept}, verl)
    found = diagnose_log(log_of(rows))
    assert found.ranked[0].slug == "sequence-mismatch"
    assert "8.6e+03 nats" in found.ranked[0].reason
    assert "3.61e+04" in found.ranked[0].reason
    [norms] = [each for each in found.findings if each.check.name == "gradient-spikes"]
    assert (norms.status, norms.explained_by) == ("found", "kl-spikes")
    asked = {name for each in found.findings for name in each.missing}
    assert asked.isdisjoint(rows[0])
    assert "actor/pg_clipfrac" in asked
    assert set(to_log(found.findings, found.log)).isdisjoint(rows[0])
