"""What each check reads from a log, at its bound and just beside it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes.check import LARGE, MILD, STOPS, log_checks
from rlvr_debug.diagnosis.rank import diagnose_log
from rlvr_debug.files import read_yaml
from rlvr_debug.logs.log import Log
from rlvr_debug.logs.names import quantities

CHECKS = {check.name: check for check in log_checks()}
UP = [0.1] * 4 + [0.2] * 4 + [0.9] * 4
LEVEL = [0.5] * 12
WAVES = [0.5, 0.4, 0.6] * 4
CALL = json.dumps([{"role": "assistant", "tool_calls": [{"name": "look_up"}], "content": ""}])
SAID = json.dumps([{"role": "assistant", "content": "x"}])
OWN_WORDS = json.dumps([{"role": "assistant", "content": '<tool_call>{"name": "f"}</tool_call>'}])


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


def read(name: str, log: Log) -> tuple[int | None, dict[str, Any]]:
    """The strength and the measured numbers, as a diagnosis has them; None where there is too little to say."""
    shown = CHECKS[name].on(log)
    if shown is None:
        return None, {}
    assert 0 <= shown.amount <= 1 or not shown.strength
    assert shown.sentence.endswith(".")
    return shown.strength, dict(shown.measured)


# by check: what is logged, and what is found
CASES = read_yaml(Path(__file__).with_name("log_checks.yaml"))
FINDS = {"too little": None, "nothing": 0, "mild": MILD, "large": LARGE, "stops": STOPS}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_a_check_finds_at_its_bound_and_not_beside_it(name: str, case: Mapping[str, Any]) -> None:
    steps = {quantity: values for quantity, values in case.items() if quantity != "finds"}
    assert read(name, log_of(**steps))[0] == FINDS[case["finds"]]


def said(text: str) -> str:
    """A conversation in which a tool says that."""
    return json.dumps([{"role": "assistant", "content": ""}, {"role": "tool", "content": text}])


def by_rank(right: bool) -> Callable[[int, int], float]:
    """Advantages of four whose rewards are 0, 1, 0, 1: by rank, or not."""
    return lambda g, c: ([-1.0, 1.0, -1.0, 1.0] if right else [1.0, 1.0, -1.0, -1.0])[c]


def apart(power: float) -> dict[str, Any]:
    """Rewards of group g that are g + 1 apart, and advantages that are divided by that to a power."""
    advantage = lambda g, c: (c % 2 - 0.5) * float((g + 1) ** (1 - power))  # noqa: E731
    return {"reward": lambda g, c: float(c % 2) * (g + 1), "advantage": advantage}


def long(noise: float) -> dict[str, Any]:
    """A reward that is the length, and some noise."""
    length: Callable[[int, int], int] = lambda g, c: 10 + 5 * c + g  # noqa: E731
    reward = lambda g, c: length(g, c) + noise * ((g * 7 + c * 3) % 5)  # noqa: E731
    return {"completion": lambda g, c: "x" * length(g, c), "reward": reward}


def judged(other: int) -> dict[str, Any]:
    """Two texts twice in each group, and in so many groups one of them with another reward."""
    reward = lambda g, c: float(c // 2) + (0.5 if g < other and c == 1 else 0.0)  # noqa: E731
    return {"completion": lambda g, c: f"x{c // 2}", "reward": reward}


# by check, of groups of four: how many groups, their columns, and what is found
GROUPS: list[tuple[str, int, dict[str, Any], int | None]] = [
    ("unanswered-calls", 10, {"completion": lambda g, c: "" if c < 2 else CALL if g < 2 else SAID}, MILD),
    ("unanswered-calls", 10, {"completion": lambda g, c: "text"}, None),
    # a call in the model's own words
    ("unanswered-calls", 10, {"completion": lambda g, c: OWN_WORDS}, STOPS),
    # copies count beyond the first, and equal rewards where completions differ
    ("duplicates", 10, {"completion": lambda g, c: f"x{c if g else 0}" if g < 5 else "x"}, LARGE),
    ("equal-rewards", 10, {"reward": lambda g, c: 1.0 if g < 7 else float(c)}, MILD),
    ("equal-rewards", 10, {"reward": lambda g, c: 1.0, "completion": lambda g, c: "x"}, 0),
    ("dead-groups", 10, {"reward": lambda g, c: 1.0, "completion": lambda g, c: "x"}, STOPS),
    ("group-means", 10, {"advantage": lambda g, c: 1.0 if g < 1 and c == 1 else (-1.0) ** c}, LARGE),
    ("group-means", 10, {"advantage": lambda g, c: (-1.0) ** c}, 0),
    # of four, an advantage is at most 3 / sqrt(4)
    ("advantage-bound", 10, {"advantage": lambda g, c: -0.5 if c else 1.5}, 0),
    ("advantage-bound", 10, {"advantage": lambda g, c: -1.6 / 3 if c else 1.6}, LARGE),
    # and where all groups have one scale, at most that of the others
    ("advantage-bound", 10, {"advantage": lambda g, c: 4 * (c % 2 - 0.5)}, 0),
    ("advantage-bound", 10, {"advantage": lambda g, c: 4 * (c % 2 - 0.5) * (3 if g < 3 else 1)}, LARGE),
    ("tiny-deviations", 12, {"reward": lambda g, c: 1.0 - 0.05 * (c % 2)}, LARGE),
    ("tiny-deviations", 12, {"reward": lambda g, c: 1.0 - 0.2 * (c % 2)}, 0),
    ("advantages-of-others", 10, {"advantage": by_rank(right=False)}, LARGE),
    ("advantages-of-others", 10, {"advantage": by_rank(right=True)}, 0),
    *(("scale-uneven", 10, apart(power), found) for power, found in ((2, LARGE), (1, 0), (0, 0))),
    *(("reward-is-length", 10, long(noise), found) for noise, found in ((0, LARGE), (40, 0))),
    # a length that only goes with right and wrong
    ("reward-is-length", 10, {"completion": lambda g, c: "x" * (10 + c % 2)}, None),
    *(("another-judgement", 10, judged(n), found) for n, found in ((3, MILD), (7, LARGE), (0, 0))),
    ("tools-alike", 3, {"completion": lambda g, c: said("none" if c < 2 else f"{g}{c}")}, MILD),
    ("tools-alike", 3, {"completion": lambda g, c: said(f"{g}{c}")}, 0),
    ("tools-alike", 10, {}, None),
    ("parts-conflict", 10, {"part/a": lambda g, c: float(c), "part/b": lambda g, c: g - float(c)}, LARGE),
    ("parts-conflict", 10, {"part/a": lambda g, c: float(c % 2), "part/b": lambda g, c: float(c // 2)}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "count", "columns", "found"), GROUPS)
def test_a_check_of_completions_finds_in_groups_what_is_planted_there(
    name: str, count: int, columns: dict[str, Any], found: int | None
) -> None:
    assert read(name, groups_of_4(count=count, **columns))[0] == found


def test_shares_are_of_what_could_have_them() -> None:
    """Conversations among those that are messages; copies among all completions; parts by their correlation."""
    for name, share in (("unanswered-calls", 0.2), ("duplicates", 0.6), ("parts-conflict", -1.0)):
        columns = next(row[2] for row in GROUPS if row[0] == name)
        assert [*read(name, groups_of_4(**columns))[1].values()] == [pytest.approx(share)]


def test_what_is_not_finite_is_counted_by_quantity() -> None:
    log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite={"loss": 2, "reward": 3})
    assert read("not-finite", log) == (STOPS, {"rows with loss not finite": 2.0})


@pytest.mark.parametrize(("falls", "strength"), [(0.11, LARGE), (0.09, 0)])
def test_a_part_that_rises_while_another_falls_is_found(falls: float, strength: int) -> None:
    parts = table({"a": [0.0] * 4 + [0.5] * 4 + [1.0] * 4, "b": [0.5] * 8 + [0.5 - falls] * 4})
    found = read("parts-pull-apart", Log("made-up", "JSONL", pd.DataFrame(), parts=parts))
    assert found == (
        strength,
        {"change of a": pytest.approx(1.0), "change of b": pytest.approx(-falls)},
    )


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
    from rlvr_debug.causes.readings import gap

    one = gap(log_of(sampler_gap=[1.0] * 12))
    assert one is not None
    found = read("sampler-gap", log_of(sampler_gap=[factor * one.bound] * 12))
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
    assert "correct scaling in groups of 4 gives at most 1.50." in known.sentence


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_logged_and_never_finite_is_too_little_of_it(name: str) -> None:
    """One such log ended in a traceback: of a sampler's gap that was infinite in every row."""
    for names in CHECKS[name].needs:
        logged = dict.fromkeys((n for n in names if n in quantities()), 12)
        log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite=logged)
        if logged and len(logged) == len(names):
            assert log.has(*names)
            assert (read(name, log)[0] is None) == (name != "not-finite")


# --- how quantities go together, and what texts say


def test_a_gap_that_comes_and_goes_is_a_sampler_that_is_synced_rarely() -> None:
    shown = CHECKS["sampler-drifts"].on(log_of(sampler_gap=[0.0, 0.1, 0.3, 0.0] * 3 + [0.0]))
    assert shown is not None
    assert shown.strength == LARGE
    assert "again and again" in shown.sentence


def test_what_is_sampled_is_not_said_to_stand_still_where_the_sampler_is_known() -> None:
    log = log_of(
        kl=[1.6] * 12, sampler_gap=[0.0] * 12, reward=LEVEL, reward_std=LEVEL, length=LEVEL
    )
    assert read("moves-in-vain", log)[0] is None


def test_advantages_of_what_is_good_alone_are_found() -> None:
    shown = CHECKS["advantages-of-others"].on(groups_of_4(advantage=lambda g, c: float(c % 2)))
    assert shown is not None
    assert shown.strength == LARGE
    assert "exactly 0" in shown.sentence


@pytest.mark.parametrize(("cut", "strength"), [(2, MILD), (1, 0), (10, LARGE)])
@pytest.mark.parametrize("side", ["beginning", "end"])
def test_prompts_without_their_beginning_or_end_are_found_by_the_template(
    cut: int, strength: int, side: str
) -> None:
    whole = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    part = whole[20:] if side == "beginning" else whole[:20]
    prompts = [part if n < cut else whole for n in range(10)]
    found = pd.DataFrame({"step": 1.0, "prompt": prompts, "completion": "x"})
    shown = CHECKS["prompt-cut"].on(Log("made-up", "JSONL", found))
    assert shown is not None
    assert shown.strength == strength
    assert not strength or side in shown.sentence


@pytest.mark.parametrize(("falls", "strength"), [(0.31, LARGE), (0.29, 0)])
def test_a_small_part_that_is_given_up_for_a_large_one_is_found(
    falls: float, strength: int
) -> None:
    """By the scale of the largest part, nothing falls."""
    large = [0.0] * 4 + [50.0] * 4 + [100.0] * 4
    small = [0.5] * 4 + [0.4] * 4 + [0.5 * (1 - falls)] * 4
    log = Log("made-up", "JSONL", pd.DataFrame(), parts=table({"length": large, "answer": small}))
    assert read("part-given-up", log)[0] == strength
    assert read("parts-pull-apart", log)[0] == 0


def test_parts_that_conflict_and_do_not_fall_cost_nothing() -> None:
    apart: dict[str, Any] = {
        "part/a": lambda g, c: float(c % 2),
        "part/b": lambda g, c: float((c + 1) % 2),
    }
    log = groups_of_4(**apart)
    assert read("parts-conflict", log)[0] == LARGE
    still = Log("made-up", "JSONL", log.completions, parts=table({"a": WAVES, "b": WAVES}))
    assert read("parts-conflict", still)[0] == 0
    falls = Log("made-up", "JSONL", log.completions, parts=table({"a": UP, "b": UP[::-1]}))
    assert read("parts-conflict", falls)[0] == LARGE


@pytest.mark.parametrize(("gap", "first"), [(1.0, "sequence-mismatch"), (2.0, "hidden-context")])
def test_a_trainer_that_does_not_know_what_was_asked_is_told_from_one_that_reads_it_otherwise(
    gap: float, first: str
) -> None:
    log = log_of(reward=WAVES, sampler_gap=[gap] * 12, sampler_ratio=[0.8] * 12)
    assert diagnose_log(log).ranked[0].slug == first


def test_every_check_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CHECKS if name not in CASES and f'"{name}"' not in source] == []
