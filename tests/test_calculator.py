import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import ToolCall, Transcript, refused
from rlvr_debug.environments.calculator import (
    MAX_DEPTH,
    MAX_DIGITS,
    TOOL,
    CalculatorRow,
    evaluate,
    synthetic_calculator,
)
from rlvr_debug.environments.rewards import numbers_equal
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_jsonl
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.rollouts import rollout
from tests.test_rewards import CASES

MODEL = ROOT / "models" / "tiny-calculator"

STEPS = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
ENVIRONMENT = build_environment(
    "calculator", {"max_turns": 5, "max_new_tokens": 40, "weights": {"correct": 1.0}}
)
ROW = CalculatorRow("row", "What is (3 + 4) * 5 - 2?", "33", 3)

Tree = tuple[str, Fraction | None]  # an expression and its value, None where there is none


# --- the tiny model that knows it


def test_the_shipped_model_calls_the_tool_and_stops_after_the_first_computation() -> None:
    rows = list(synthetic_calculator(64, steps={2: 1.0}, seed=11))
    chat = Chat(MODEL)
    sampler = base_sampler(MODEL, chat)
    done = rollout(rows, ENVIRONMENT, chat, sampler, temperature=1.0, seed=0)
    calls = Counter(current.transcript.calls for current in done)
    assert calls[1] > 32 > calls[2] > 5
    # there is something to learn, and it is earned now and then
    assert 0.05 < sum(current.reward for current in done) / len(done) < 0.5


# --- the evaluator


def joined(left: Tree, sign: str, right: Tree) -> Tree:
    text = f"({left[0]}) {sign}({right[0]})"
    a, b = left[1], right[1]
    if a is None or b is None or (sign == "/" and b == 0):
        return text, None
    return text, {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign]


leaves: st.SearchStrategy[Tree] = st.integers(0, 99).map(
    lambda n: (str(n), Fraction(n))
) | st.tuples(st.integers(0, 99), st.integers(0, 99)).map(
    lambda n: (f"{n[0]}.{n[1]:02}", Fraction(100 * n[0] + n[1], 100))
)
trees = st.recursive(
    leaves,
    lambda below: (
        st.builds(joined, below, st.sampled_from("+-*/"), below)
        | below.map(lambda tree: (f"-({tree[0]})", None if tree[1] is None else -tree[1]))
        | st.builds(
            lambda tree, n: (f"({tree[0]})**{n}", None if tree[1] is None else tree[1] ** n),
            below,
            st.integers(0, 3),
        )
    ),
    max_leaves=6,
)


@given(trees)
def test_an_expression_has_the_value_of_its_fractions(tree: Tree) -> None:
    text, value = tree
    result = ENVIRONMENT.call_tool(ROW, ToolCall("calculate", {"expression": text}))
    if result.error:
        beyond = ("more than", "longer than", "too many", "too deep")
        assert value is None or any(limit in result.text for limit in beyond)
    else:
        assert Fraction(result.text) == value


@given(
    st.text(max_size=300)
    | st.text("0123456789.+-*/() ", max_size=300)
    | st.lists(st.sampled_from(["9", "**", "(", ")", "-", ".5", "e9", "99999", "/", " "])).map(
        "".join
    )
)
@example("9**9**9**9")
@example("9" * 5000)
@example("(" * 150 + "1" + ")" * 150)
@example("(" * 99 + "1" + ")" * 99)
@example("-" * 199 + "1")
@example("...")
@example("\0")
@example("\ud800")
@example("1" + "**9" * 60)
@example("__import__('os')")
def test_any_text_has_a_value_of_bounded_size_or_an_error_that_a_model_can_read(text: str) -> None:
    result = ENVIRONMENT.call_tool(ROW, ToolCall("calculate", {"expression": text}))
    if result.error:
        assert result.error == "bad_arguments"
        assert re.fullmatch(r"Error: [a-z0-9 ,+*/().-]+\.", result.text)
    else:
        value = Fraction(result.text)
        assert max(abs(value.numerator), value.denominator) < 10**MAX_DIGITS
    assert not result.ends


@pytest.mark.parametrize(
    ("expression", "value"),
    CASES["values of expressions"],
)
def test_values_are_exact_and_signs_bind_as_in_python(expression: str, value: str) -> None:
    assert str(evaluate(expression)) == value


@pytest.mark.parametrize(("inner", "value"), [("-1", -1), ("(1+2)", 3), ("(2**2)", 4)])
def test_each_part_of_an_expression_is_one_level_deeper(inner: str, value: int) -> None:
    signs = MAX_DEPTH - 2
    assert evaluate("-" * signs + inner) == value
    with pytest.raises(ValueError, match="nested too deep"):
        evaluate("-" * (signs + 1) + inner)


@pytest.mark.parametrize(
    ("expression", "said"),
    CASES["refused expressions"],
)
def test_what_is_no_expression_or_beyond_a_limit_is_refused_with_the_reason(
    expression: str, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        evaluate(expression)


# --- the environment


def test_a_call_shows_the_value_and_leaves_the_rollout_open() -> None:
    call = ToolCall("calculate", {"expression": "(3 + 4) * 5"})
    assert refused(call, ENVIRONMENT.tools) is None
    result = ENVIRONMENT.call_tool(ROW, call)
    assert (result.text, result.error, result.ends, result.indices) == ("35", "", False, ())
    for arguments in ({}, {"expression": 3}, {"expression": "1", "more": "2"}):
        refusal = refused(ToolCall("calculate", arguments), [TOOL])
        assert refusal is not None
        assert refusal.error == "bad_arguments"


@pytest.mark.parametrize(
    ("reply", "outcome", "correct"),
    CASES["answers of the calculator"],
)
def test_the_last_answer_counts_and_is_one_number(reply: str, outcome: str, correct: float) -> None:
    transcript = Transcript([reply])
    assert ENVIRONMENT.outcome(transcript) == outcome
    parts = ENVIRONMENT.score(ROW, transcript)
    assert parts == {"correct": correct, "used_tool": 0}
    assert ENVIRONMENT.reward(ROW, parts) == correct


def test_whether_the_tool_was_used_is_recorded_and_not_rewarded() -> None:
    used = Transcript(["<answer>33</answer>"], calls=2)
    parts = ENVIRONMENT.score(ROW, used)
    assert parts == {"correct": 1, "used_tool": 1}
    assert ENVIRONMENT.reward(ROW, parts) == 1
    assert ENVIRONMENT.reward(ROW, {"correct": 0.0, "used_tool": 1.0}) == 0


# --- rows


def solved(question: str) -> Fraction:
    """By another way than the generator's."""
    if question.startswith("What is "):
        return evaluate(question.removeprefix("What is ").removesuffix("?"))
    start, *operations = question.removesuffix(". What is the result?").split(", then ")
    value = Fraction(start.removeprefix("Start with "))
    for operation in operations:
        word, number = operation.rsplit(" ", 1)
        sign = {"add": "+", "subtract": "-", "multiply by": "*", "divide by": "/"}[word]
        value = evaluate(f"({value}) {sign} {number}")
    return value


def test_every_answer_is_that_of_its_question_and_every_form_comes_up() -> None:
    rows = list(synthetic_calculator(600, steps=STEPS, seed=1))
    for row in rows:
        assert numbers_equal(str(solved(row.question)), row.answer) == 1
        operations = re.findall(r" [-+*/] |, then ", row.question)
        assert len(operations) == row.steps == row.hops
    assert {row.question.split()[0] for row in rows} == {"What", "Start"}
    signs = Counter(sign for row in rows for sign in "+-*/" if f" {sign} " in row.question)
    assert min(signs[sign] for sign in "+-*/") > 20
    by_steps = Counter(row.steps for row in rows)
    assert all(100 < by_steps[steps] < 200 for steps in STEPS)


@pytest.mark.parametrize("steps", [{5: 1.0}, {0: 1.0}, {1: 0.0}, {}])
def test_steps_that_no_question_has_are_refused(steps: dict[int, float]) -> None:
    with pytest.raises(InputError, match="expected shares for 1 to 4, not all 0"):
        list(synthetic_calculator(1, steps=steps, seed=0))


def test_prepared_rows_are_read_as_they_were_and_splits_share_no_question(tmp_path: Any) -> None:
    steps = {str(number): share for number, share in STEPS.items()}
    settings = {"source": "synthetic", "rows": 400, "steps": steps, "heldout": 50, "seed": 0}
    prepare("calculator", settings, tmp_path)
    train, heldout = (
        read_rows("calculator", tmp_path / f"{name}.jsonl") for name in ("train", "heldout")
    )
    assert len(train) + len(heldout) == 400
    assert not {row.question for row in train} & {row.question for row in heldout}
    every: list[Any] = [*train, *heldout]
    generated = list(synthetic_calculator(400, steps=STEPS, seed=0))
    assert sorted(every, key=lambda row: str(row.id)) == sorted(generated, key=lambda row: row.id)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("answer", "many", "key 'answer' is no number, expected one like 12, -0.5 or 3/4"),
        ("answer", "1/0", "key 'answer' is no number, expected one like 12, -0.5 or 3/4"),
        ("answer", 33, "key 'answer' is 33, expected text"),
        ("steps", 0, "key 'steps' is 0, expected at least 1"),
        ("steps", "1", "key 'steps' is text '1', expected a whole number"),
        ("question", " ", "key 'question' is text ' ', expected text"),
    ],
)
def test_a_broken_row_is_named_with_its_line(
    key: str, value: Any, said: str, tmp_path: Any
) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [ROW.to_json(), {**ROW.to_json(), "id": "other", key: value}])
    with pytest.raises(InputError) as caught:
        read_rows("calculator", path)
    assert str(caught.value) == f"{path}:2: {said}"


@given(st.fractions())
def test_any_fraction_may_be_an_answer(value: Fraction) -> None:
    row = {**ROW.to_json(), "answer": str(value)}
    assert CalculatorRow.parse(row, "here").answer == str(value)
