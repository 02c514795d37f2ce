"""What each check reads from a log, at its bound and just beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes.check import LARGE, MILD, STOPS, log_checks
from rlvr_debug.logs.log import Log
from rlvr_debug.logs.names import quantities

CHECKS = {check.name: check for check in log_checks()}
UP, DOWN = [0.1] * 4 + [0.2] * 4 + [0.9] * 4, [0.9] * 4 + [0.2] * 4 + [0.1] * 4
LEVEL = [0.5] * 12
CALL = json.dumps([{"role": "assistant", "tool_calls": [{"name": "look_up"}], "content": ""}])
SAID = json.dumps([{"role": "assistant", "content": "x"}])


def table(columns: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    size = max(map(len, columns.values()), default=0)
    padded = {
        name: [*values, *[math.nan] * (size - len(values))] for name, values in columns.items()
    }
    return pd.DataFrame(padded, index=range(1, size + 1), dtype=float)


def log_of(**steps: Sequence[float]) -> Log:
    return Log("made-up", "JSONL", pd.DataFrame(), steps=table(steps))


def groups_of_4(count: int = 10, steps: int = 1, **columns: Any) -> Log:
    """`count` groups a step; a column is a function of the group's and the completion's number."""
    columns = {"completion": lambda g, c: f"x{c}", "reward": lambda g, c: float(c % 2), **columns}
    places = [(s, g, c) for s in range(steps) for g in range(count) for c in range(4)]
    named = {name: [value(g, c) for _, g, c in places] for name, value in columns.items()}
    where = {"step": [float(s) for s, _, _ in places], "prompt": [f"p{g}" for _, g, _ in places]}
    return Log("made-up", "JSONL", pd.DataFrame({**where, **named}))


def read(name: str, log: Log) -> tuple[int, dict[str, Any]] | None:
    """The strength and the measured numbers, as a diagnosis has them."""
    shown = CHECKS[name].on(log)
    if shown is None:
        return None
    assert 0 <= shown.amount <= 1 or not shown.strength
    assert shown.sentence.endswith(".")
    return shown.strength, dict(shown.measured)


CASES: Sequence[tuple[str, dict[str, Sequence[float]], int | None]] = [
    ("truncation", {"truncated": [0.2]}, MILD),
    ("truncation", {"truncated": [0.19]}, 0),
    ("truncation", {"truncated": [0.5]}, LARGE),
    ("truncation", {"truncated": [0.9]}, STOPS),
    ("truncation", {"truncated": [0.9, 0.0, 0.0, 0.0, 0.0]}, 0),  # it mends itself
    ("truncation", {"truncated": [0.0, 1.0, 1.0, 1.0, 1.0]}, 0),  # it is no cause: it comes later
    ("prompt-truncation", {"prompt_truncated": [0.1, 0.3]}, MILD),
    ("prompt-truncation", {"prompt_truncated": [0.4, 0.6]}, LARGE),
    ("prompt-truncation", {"prompt_truncated": [0.1, 0.2]}, 0),
    ("heldout-stays", {"reward": UP, "heldout": [0.1, 0.29]}, LARGE),
    ("heldout-stays", {"reward": UP, "heldout": [0.1, 0.35]}, 0),
    ("heldout-stays", {"reward": DOWN, "heldout": [0.1, 0.1]}, 0),
    ("heldout-stays", {"reward": UP, "heldout": [0.1]}, None),
    ("heldout-stays", {"reward": UP[:8], "heldout": [0.1, 0.1]}, None),
    ("gradient-large", {"grad_norm": [9.9] * 4}, 0),
    ("gradient-large", {"grad_norm": [10.0] * 4}, MILD),
    ("gradient-large", {"grad_norm": [100.0] * 3 + [0.0]}, LARGE),
    ("gradient-grows", {"grad_norm": [1.0] * 4 + [2.0] * 4 + [10.0] * 4}, LARGE),
    ("gradient-grows", {"grad_norm": [1.0] * 4 + [2.0] * 4 + [9.9] * 4}, 0),
    ("gradient-grows", {"grad_norm": [0.0] + [1.0] * 4 + [2.0] * 4 + [10.0] * 3}, None),
    ("reward-collapses", {"reward": [1.0] * 2 + [0.9] * 6 + [0.74] * 4}, MILD),
    ("reward-collapses", {"reward": [1.0] * 2 + [0.9] * 6 + [0.5] * 4}, LARGE),
    ("reward-collapses", {"reward": [1.0] * 2 + [0.9] * 6 + [0.76] * 4}, 0),
    ("reward-collapses", {"reward": [1.0, 0.4] + [0.9] * 6 + [0.4] * 4}, 0),
    ("update-too-large", {"clipped": [0.1, 0.3, 0.9]}, MILD),
    ("update-too-large", {"clipped": [0.1, 0.29, 0.9]}, 0),
    ("entropy-rises", {"entropy": [0.5] * 4 + [1.0] * 4 + [1.6] * 4}, MILD),
    ("entropy-rises", {"entropy": [0.5] * 4 + [1.0] * 4 + [1.4] * 4}, 0),
    ("entropy-rises", {"entropy": [0.1] * 4 + [0.5] * 4 + [0.9] * 4}, 0),
    ("entropy-rises", {"entropy": [-0.5] * 4 + [1.0] * 4 + [1.6] * 4}, None),
    ("dead-groups", {"dead_groups": [0.49]}, 0),
    ("dead-groups", {"dead_groups": [0.5]}, MILD),
    ("dead-groups", {"dead_groups": [0.75]}, LARGE),
    ("dead-groups", {"dead_groups": [0.9]}, STOPS),
    ("entropy-collapses", {"entropy": [1.0] * 4 + [0.5] * 4 + [0.09] * 4}, MILD),
    ("entropy-collapses", {"entropy": [1.0] * 4 + [0.5] * 4 + [0.11] * 4}, 0),
    ("entropy-collapses", {"entropy": [0.0] * 4 + [0.5] * 4 + [0.09] * 4}, None),
    ("advantages-too-large", {"advantage_max": [1.0, 25.0], "group_std": [0.04] * 2}, LARGE),
    ("advantages-too-large", {"advantage_max": [10.0], "group_std": [1.0]}, LARGE),
    ("advantages-too-large", {"advantage_max": [9.9], "group_std": [0.04]}, 0),
    ("advantages-too-large", {"advantage_max": [25.0], "group_std": [2.6]}, 0),  # not scaled
    ("kl-explodes", {"kl": [0.0] * 4 + [1.0] * 2}, LARGE),
    ("kl-explodes", {"kl": [0.0] * 4 + [0.99] * 2}, 0),
    ("kl-at-first", {"kl": [0.01, 0.0]}, MILD),
    ("kl-at-first", {"kl": [0.009, 1.0]}, 0),
    ("length-drifts", {"length": [10] * 4 + [12] * 4 + [15] * 4, "reward": LEVEL}, MILD),
    ("length-drifts", {"length": [10] * 4 + [12] * 4 + [14] * 4, "reward": LEVEL}, 0),
    ("length-drifts", {"length": [10] * 4 + [12] * 4 + [15] * 4, "reward": UP}, 0),
    ("few-tool-calls", {"tool_calls": [2.0] * 4 + [1.5] * 4 + [1.0] * 4}, MILD),
    ("few-tool-calls", {"tool_calls": [2.0] * 4 + [1.5] * 4 + [1.1] * 4}, 0),
    ("few-tool-calls", {"tool_calls": [0.0] * 12}, MILD),
    ("tool-failures", {"tool_failures": [0.4, 0.6]}, MILD),
    ("tool-failures", {"tool_failures": [0.4, 0.5]}, 0),
    ("learning-rate-zero", {"learning_rate": [0.0] * 4}, STOPS),
    ("learning-rate-zero", {"learning_rate": [1e-8] * 4}, STOPS),
    ("learning-rate-zero", {"learning_rate": [1.1e-8] * 4}, 0),
    ("schedule-ended", {"learning_rate": [1e-5] * 9 + [1e-7] * 3}, LARGE),
    ("schedule-ended", {"learning_rate": [1e-5] * 10 + [1e-7] * 2}, 0),
    ("schedule-ended", {"learning_rate": [1e-8] * 12}, None),
    ("gradient-zero", {"grad_norm": [0.0] * 5 + [1.0] * 5}, LARGE),
    ("gradient-zero", {"grad_norm": [0.0] * 9 + [1.0]}, STOPS),
    ("gradient-zero", {"grad_norm": [0.0] * 4 + [1.0] * 6}, 0),
    ("weights-still", {"weights_moved": [0.0] * 4}, STOPS),
    ("weights-still", {"weights_moved": [0.009] * 4}, LARGE),
    ("weights-still", {"weights_moved": [0.01] * 4}, 0),
    ("kl-stays-zero", {"kl": [0.0] * 12, "learning_rate": [1e-5] * 12}, MILD),
    ("kl-stays-zero", {"kl": [0.0] * 12, "learning_rate": [0.0] * 12}, 0),
    ("kl-stays-zero", {"kl": [0.0] * 11 + [0.1], "learning_rate": [1e-5] * 12}, 0),
    ("constant-reward", {"reward": [0.5] * 4}, STOPS),
    ("constant-reward", {"reward": [0.5, 0.5, 0.5, 0.6]}, 0),
    ("constant-reward", {"reward": [0.5] * 4, "reward_std": [0.1] * 4}, 0),
    ("constant-reward", {"reward": [0.5] * 3}, None),
    ("tiny-deviations", {"reward": [0.5, 1.0], "reward_std": [0.09, 0.09]}, MILD),
    ("tiny-deviations", {"reward": [0.5, 1.0], "reward_std": [0.1, 0.1]}, 0),
    ("tiny-deviations", {"reward": [0.5, 1.0], "reward_std": [0.0, 0.0]}, 0),
    ("tiny-deviations", {"tiny_std_share": [0.5, 0.5]}, LARGE),
    ("tiny-deviations", {"tiny_std_share": [0.4, 0.5]}, 0),
    ("other-context", {"sampler_gap": [0.3] * 4 + [0.1] * 8}, LARGE),
    ("other-context", {"sampler_gap": [0.29] * 4 + [0.9] * 8}, 0),
    ("other-sequence", {"sampler_gap": [0.3] * 4 + [0.1] * 8}, LARGE),
    ("other-sequence", {"sampler_gap": [0.29] * 4 + [0.9] * 8}, 0),
    (
        "sampler-gap",
        {"sampler_factor": [0.5] * 4},
        0,
    ),  # the mean of exp(|difference|) is 1 at least
    ("sampler-gap", {"sampler_factor": [1.05] * 4}, LARGE),
    ("sampler-gap", {"sampler_ratio": [0.89] * 4}, LARGE),
    ("sampler-gap", {"sampler_ratio": [0.91] * 4}, 0),
    ("sampler-gap", {"sampler_kl": [-0.05] * 4}, LARGE),
    ("trained-tokens", {"sampled_tokens": [1000.0], "trained_tokens": [998.0]}, LARGE),
    ("trained-tokens", {"sampled_tokens": [1000.0], "trained_tokens": [999.0]}, 0),
    ("trained-tokens", {"sampled_tokens": [1000.0], "trained_tokens": [1002.0]}, LARGE),
]


@pytest.mark.parametrize(
    ("name", "steps", "strength"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)]
)
def test_a_check_finds_at_its_bound_and_not_below(
    name: str, steps: dict[str, Sequence[float]], strength: int | None
) -> None:
    found = read(name, log_of(**steps))
    assert (found and found[0]) == strength


def test_what_is_not_finite_is_counted_by_quantity() -> None:
    log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite={"loss": 2, "reward": 3})
    assert read("not-finite", log) == (STOPS, {"rows with loss not finite": 2.0})


def test_conversations_that_end_in_a_call_are_counted_among_those_that_are_messages() -> None:
    def said(g: int, c: int) -> str:
        return "no messages" if c < 2 else CALL if g < 2 else SAID

    found = read("unanswered-calls", groups_of_4(completion=said))
    assert found is not None
    assert (found[0], list(found[1].values())) == (MILD, [pytest.approx(0.2)])
    assert read("unanswered-calls", groups_of_4(completion=lambda g, c: "text")) is None


def test_copies_are_counted_beyond_the_first() -> None:
    twice = groups_of_4(completion=lambda g, c: f"x{c if g else 0}" if g < 5 else "x")
    found = read("duplicates", twice)
    assert found is not None
    assert (found[0], list(found[1].values())) == (LARGE, [pytest.approx(0.6)])


def test_equal_rewards_count_only_where_completions_differ() -> None:
    same = groups_of_4(reward=lambda g, c: 1.0 if g < 7 else float(c))
    assert (read("equal-rewards", same) or (None,))[0] == MILD
    copies = groups_of_4(reward=lambda g, c: 1.0, completion=lambda g, c: "x")
    assert (read("equal-rewards", copies) or (None,))[0] == 0
    assert (read("dead-groups", copies) or (None,))[0] == STOPS


@pytest.mark.parametrize(("bad", "strength"), [(1, LARGE), (0, 0)])
def test_groups_whose_advantages_do_not_cancel_are_counted(bad: int, strength: int) -> None:
    log = groups_of_4(advantage=lambda g, c: 1.0 if g < bad and c == 1 else (-1.0) ** c)
    assert (read("group-means", log) or (None,))[0] == strength


@pytest.mark.parametrize(("largest", "strength"), [(1.5, 0), (1.6, LARGE)])
def test_advantages_beyond_what_a_group_allows_are_found(largest: float, strength: int) -> None:
    """Of four, at most 3 / sqrt(4)."""
    log = groups_of_4(advantage=lambda g, c: largest if c == 0 else -largest / 3)
    assert (read("advantage-bound", log) or (None,))[0] == strength


@pytest.mark.parametrize(("apart", "strength"), [(0.05, LARGE), (0.2, 0)])
def test_small_deviations_of_groups_are_found_beside_the_rewards_scale(
    apart: float, strength: int
) -> None:
    log = groups_of_4(reward=lambda g, c: 1.0 - apart * (c % 2), count=12)
    assert (read("tiny-deviations", log) or (None,))[0] == strength


@pytest.mark.parametrize(("falls", "strength"), [(0.11, LARGE), (0.09, 0)])
def test_a_part_that_rises_while_another_falls_is_found(falls: float, strength: int) -> None:
    parts = table({"a": [0.0] * 4 + [0.5] * 4 + [1.0] * 4, "b": [0.5] * 8 + [0.5 - falls] * 4})
    found = read("parts-pull-apart", Log("made-up", "JSONL", pd.DataFrame(), parts=parts))
    assert found is not None
    assert found == (
        strength,
        {"change of a": pytest.approx(1.0), "change of b": pytest.approx(-falls)},
    )


def test_parts_against_each_other_within_groups_are_found() -> None:
    against: dict[str, Any] = {"part/a": lambda g, c: float(c), "part/b": lambda g, c: g - float(c)}
    found = read("parts-conflict", groups_of_4(**against))
    assert found is not None
    assert (found[0], list(found[1].values())) == (LARGE, [pytest.approx(-1.0)])
    beside: dict[str, Any] = {
        "part/a": lambda g, c: float(c % 2),
        "part/b": lambda g, c: float(c // 2),
    }
    assert (read("parts-conflict", groups_of_4(**beside)) or (None,))[0] == 0


def test_a_part_that_never_differs_is_named_and_one_that_always_differs_by_1_is_not() -> None:
    log = Log(
        *("made-up", "JSONL", pd.DataFrame()),
        steps=table({"reward": LEVEL}),
        parts=table({"a": LEVEL, "b": LEVEL}),
        part_stds=table({"a": [0.0] * 4, "b": [1.0] * 4}),
    )
    shown = CHECKS["dead-part"].on(log)
    assert shown is not None
    assert shown.strength == MILD
    assert " a " in f" {shown.sentence} "
    assert list(shown.measured.values()) == [1.0]


@pytest.mark.parametrize(("factor", "strength"), [(1.0, LARGE), (0.99, 0)])
def test_a_gap_to_the_sampler_is_found_at_its_bound(factor: float, strength: int) -> None:
    from rlvr_debug.causes.sampler_gap import gap

    one = gap(log_of(sampler_gap=[1.0] * 12))
    assert one is not None
    found = read("sampler-gap", log_of(sampler_gap=[factor * one.bound] * 12))
    assert found is not None
    assert found[0] == strength


def test_an_advantage_that_no_scaling_gives_is_said_with_the_group_s_size_where_it_is_known() -> (
    None
):
    check, steps = CHECKS["advantages-too-large"], {"advantage_max": [25.0], "group_std": [0.04]}
    alone = check.on(log_of(**steps))
    assert alone is not None
    # (N - 1) / sqrt(N) is 25 between these
    assert [(n - 1) / math.sqrt(n) > 25 for n in (626, 627)] == [False, True]
    assert "in groups of 627 rollouts or more" in alone.sentence
    known = check.on(replace(groups_of_4(), steps=table(steps)))
    assert known is not None
    assert "no right scaling in groups of 4 gives more than 1.50." in known.sentence


def test_every_check_is_tried_here() -> None:
    here = Path(__file__)
    files = (here, here.with_name("test_log_relations.py"))
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in CHECKS if f'"{name}"' not in source] == []


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_logged_and_never_finite_is_too_little_of_it(name: str) -> None:
    """One such log ended in a traceback: of a sampler's gap that was infinite in every row."""
    for names in CHECKS[name].needs:
        logged = dict.fromkeys((n for n in names if n in quantities()), 12)
        log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite=logged)
        if logged and len(logged) == len(names):
            assert log.has(*names)
            assert (read(name, log) is None) == (name != "not-finite")
