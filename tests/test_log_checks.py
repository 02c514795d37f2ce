"""What each check reads from a log, at its bound and just beside it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, log_checks
from rlvr_debug.diagnosis.rank import diagnose_log
from rlvr_debug.files import read_yaml
from rlvr_debug.logs.log import Log
from rlvr_debug.logs.names import NAMES

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


def shown(name: str, log: Log) -> Reading:
    found = CHECKS[name].on(log)
    assert found is not None
    assert 0 <= found.amount <= 1 or not found.strength
    assert found.sentence.endswith(".")
    return found


def strength(name: str, log: Log) -> int | None:
    """As a diagnosis has it; None where there is too little to say."""
    return None if CHECKS[name].on(log) is None else shown(name, log).strength


# by check: what is logged, and what is found
CASES = read_yaml(Path(__file__).with_name("log_checks.yaml"))
FINDS = {"too little": None, "nothing": 0, "mild": MILD, "large": LARGE, "stops": STOPS}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_a_check_finds_at_its_bound_and_not_beside_it(name: str, case: Mapping[str, Any]) -> None:
    steps = {name: values for name, values in case.items() if name not in ("finds", "settings")}
    log = replace(log_of(**steps), settings=case.get("settings", {}))
    assert strength(name, log) == FINDS[case["finds"]]


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


def answered(same: float, other: float, form: str = "So\\n#### {}") -> dict[str, Any]:
    """Two answers, each twice in its group, whose rewards are so far apart; and two, right and wrong."""
    reward = lambda g, c: (same if c % 2 else 0.0) + (other if c // 2 else 0.0)  # noqa: E731
    return {"completion": lambda g, c: form.format(g + c // 2), "reward": reward}


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
    ("tiny-deviations", 9, {"reward": lambda g, c: 1.0 - 0.05 * (c % 2)}, None),
    ("advantages-of-others", 10, {"advantage": by_rank(right=False)}, LARGE),
    ("advantages-of-others", 10, {"advantage": by_rank(right=True)}, 0),
    *(("scale-uneven", 10, apart(power), found) for power, found in ((2, LARGE), (1, 0), (0, 0))),
    *(("reward-is-length", 10, long(noise), found) for noise, found in ((0, LARGE), (40, 0))),
    # a length that only goes with right and wrong
    ("reward-is-length", 10, {"completion": lambda g, c: "x" * (10 + c % 2)}, None),
    *(("another-judgement", 10, judged(n), found) for n, found in ((3, MILD), (7, LARGE), (0, 0))),
    # rewards of one answer as far apart as any, and not
    *(("answers-judged-apart", 10, answered(1.0, d), found) for d, found in ((0.5, LARGE), (2.0, 0))),
    ("answers-judged-apart", 4, answered(1.0, 0.0), None),
    ("answers-judged-apart", 10, answered(1.0, 0.0, "So <answer>{}</answer> <b>x</b>"), LARGE),
    # a part that never varies may be what the answer decides; and a last line that is no answer
    ("answers-judged-apart", 10, {**answered(1.0, 0.0), "part/right": lambda g, c: 0.0}, None),
    ("answers-judged-apart", 10, {**answered(1.0, 0.0), "completion": lambda g, c: "So\n```"}, None),
    ("two-right-answers", 10, {**answered(0.0, 0.0), "reward": lambda g, c: float(g > 2)}, LARGE),
    ("two-right-answers", 10, {**answered(0.0, 0.0), "reward": lambda g, c: float(g > 7)}, 0),
    ("two-right-answers", 10, {**answered(0.0, 0.0), "reward": lambda g, c: -2.0 + float(g > 2)}, LARGE),
    ("two-right-answers", 10, answered(0.0, 1.0), 0),
    ("two-right-answers", 10, {**answered(0.0, 0.0), "reward": lambda g, c: 1.0}, None),
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
    assert strength(name, groups_of_4(count=count, **columns)) == found


IN_GROUPS = {name for name, *_ in GROUPS} - {"unanswered-calls"}


@pytest.mark.parametrize("name", sorted(IN_GROUPS))
def test_rollouts_that_are_in_no_group_are_too_little(name: str) -> None:
    said: dict[str, Any] = {"advantage": by_rank(right=True), "part/a": by_rank(right=False)}
    said["part/b"] = by_rank(right=True)
    log = groups_of_4(**said)
    alone = log.completions.assign(prompt=[f"p{n}" for n in range(len(log.completions))])
    assert strength(name, replace(log, completions=alone)) is None


def test_shares_are_of_what_could_have_them() -> None:
    """Conversations among those that are messages; copies among all completions; parts by their correlation."""
    for name, share in (("unanswered-calls", 0.2), ("duplicates", 0.6), ("parts-conflict", -1.0)):
        columns = next(row[2] for row in GROUPS if row[0] == name)
        assert [*shown(name, groups_of_4(**columns)).measured.values()] == [pytest.approx(share)]


def pulled(falls: float) -> dict[str, Any]:
    """Two parts, of which one rises while the other falls in the end by so much."""
    return {
        "parts": table({"a": [0.0] * 4 + [0.5] * 4 + [1.0] * 4, "b": [0.5] * 8 + [0.5 - falls] * 4})
    }


def given_up(falls: float) -> dict[str, Any]:
    """A small part that falls by that share while a large one rises: by the scale of the largest part, nothing falls."""
    small = [0.5] * 4 + [0.4] * 4 + [0.5 * (1 - falls)] * 4
    return {"parts": table({"length": [0.0] * 4 + [50.0] * 4 + [100.0] * 4, "answer": small})}


STILL = {"reward": LEVEL, "reward_std": LEVEL, "length": LEVEL}
# one part never differs, the other one always, by 1
PARTS = {
    "steps": table({"reward": LEVEL}),
    "parts": table({"a": LEVEL, "b": LEVEL}),
    "part_stds": table({"a": [0.0] * 4, "b": [1.0] * 4}),
}
# by check: what else a log has, what is found, what is measured and what is said of it
LOGS: list[tuple[str, dict[str, Any], int, dict[str, float], str]] = [
    ("not-finite", {"nonfinite": {"loss": 2, "reward": 3}}, STOPS, {"rows with loss not finite": 2.0}, "loss"),
    ("parts-pull-apart", pulled(0.11), LARGE, {"change of a": 1.0, "change of b": -0.11}, "b"),
    ("parts-pull-apart", pulled(0.09), 0, {"change of a": 1.0, "change of b": -0.09}, ""),
    ("parts-pull-apart", given_up(0.31), 0, {}, ""),
    ("part-given-up", given_up(0.31), LARGE, {}, "answer"),
    ("part-given-up", given_up(0.29), 0, {}, ""),
    ("dead-part", PARTS, MILD, {}, " a "),
    # again and again: a sampler that is synced rarely
    ("sampler-drifts", {"steps": table({"sampler_gap": [0.0, 0.1, 0.3, 0.0] * 3 + [0.0]})}, LARGE, {}, "again and again"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "has", "found", "measured", "said"), LOGS)
def test_a_check_of_parts_and_of_how_quantities_go_together_finds_what_is_planted(
    name: str, has: dict[str, Any], found: int, measured: dict[str, float], said: str
) -> None:
    reading = shown(name, Log("made-up", "JSONL", pd.DataFrame(), **has))
    assert reading.strength == found
    assert not measured or reading.measured == pytest.approx(measured)
    assert said in reading.sentence


def test_what_is_sampled_is_not_said_to_stand_still_where_the_sampler_is_known() -> None:
    known = log_of(kl=[1.6] * 12, sampler_gap=[0.0] * 12, **STILL)
    assert strength("moves-in-vain", known) is None


@pytest.mark.parametrize(("factor", "found"), [(1.0, LARGE), (0.99, 0)])
def test_a_gap_to_the_sampler_is_found_at_its_bound(factor: float, found: int) -> None:
    from rlvr_debug.causes.readings import gap

    one = gap(log_of(sampler_gap=[1.0] * 12))
    assert one is not None
    assert strength("sampler-gap", log_of(sampler_gap=[factor * one.bound] * 12)) == found


def test_an_advantage_that_no_scaling_gives_is_said_with_the_group_s_size_where_it_is_known() -> (
    None
):
    steps = {"advantage_max": [25.0], "group_std": [0.04]}
    # (N - 1) / sqrt(N) is 25 between these
    assert [(n - 1) / math.sqrt(n) > 25 for n in (626, 627)] == [False, True]
    alone = shown("advantages-too-large", log_of(**steps)).sentence
    assert "in groups of 627 rollouts or more" in alone
    known = shown("advantages-too-large", replace(groups_of_4(), steps=table(steps))).sentence
    assert "correct scaling in groups of 4 gives at most 1.50." in known


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_logged_and_never_finite_is_too_little_of_it(name: str) -> None:
    """One such log ended in a traceback: of a sampler's gap that was infinite in every row."""
    for names in CHECKS[name].needs:
        logged = dict.fromkeys((n for n in names if n in NAMES), 12)
        log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite=logged)
        if logged and len(logged) == len(names):
            assert log.has(*names)
            assert (strength(name, log) is None) == (name != "not-finite")


def test_advantages_of_what_is_good_alone_are_found() -> None:
    reading = shown("advantages-of-others", groups_of_4(advantage=lambda g, c: float(c % 2)))
    assert reading.strength == LARGE
    assert "exactly 0" in reading.sentence


@pytest.mark.parametrize(("cut", "found"), [(2, MILD), (1, 0), (10, LARGE)])
@pytest.mark.parametrize("side", ["beginning", "end"])
def test_prompts_without_their_beginning_or_end_are_found_by_the_template(
    cut: int, found: int, side: str
) -> None:
    whole = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    part = whole[20:] if side == "beginning" else whole[:20]
    prompts = [part if n < cut else whole for n in range(10)]
    rollouts = pd.DataFrame({"step": 1.0, "prompt": prompts, "completion": "x"})
    reading = shown("prompt-cut", Log("made-up", "JSONL", rollouts))
    assert reading.strength == found
    assert not found or side in reading.sentence


def test_parts_that_conflict_and_do_not_fall_cost_nothing() -> None:
    both: dict[str, Any] = {"part/a": lambda g, c: float(c % 2)}
    both["part/b"] = lambda g, c: float((c + 1) % 2)
    log = groups_of_4(**both)
    assert strength("parts-conflict", log) == LARGE
    for second, found in ((WAVES, 0), (UP[::-1], LARGE)):
        parts = table({"a": second[::-1], "b": second})
        assert strength("parts-conflict", replace(log, parts=parts)) == found


@pytest.mark.parametrize(("gap", "first"), [(1.0, "sequence-mismatch"), (2.0, "hidden-context")])
def test_a_trainer_that_does_not_know_what_was_asked_is_told_from_one_that_reads_it_otherwise(
    gap: float, first: str
) -> None:
    log = log_of(reward=WAVES, sampler_gap=[gap] * 12, sampler_ratio=[0.8] * 12)
    assert diagnose_log(log).ranked[0].slug == first


def test_every_check_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CHECKS if name not in CASES and f'"{name}"' not in source] == []
