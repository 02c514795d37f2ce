"""Calculator: arithmetic with a tool, over several turns.

What a model writes is never executed: an expression is parsed, and its tree is walked within limits.
"""

import ast
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from rlvr_debug.blocks import Count
from rlvr_debug.data.rows import Row, Text
from rlvr_debug.environments import rewards, task
from rlvr_debug.environments.base import Environment, ToolCall, ToolResult, Transcript, tool
from rlvr_debug.errors import InputError

SYSTEM = (
    "Work out the number. Compute with calculate, one step at a time. "
    "Then answer: <answer>...</answer>"
)
TOOL = tool(
    "calculate",
    "Compute an expression of numbers, + - * / ** and parentheses, exactly.",
    expression=("string", "For example (3 + 4) * 5."),
)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

MAX_LENGTH = 200  # characters of an expression
MAX_NODES = 100  # of its tree
MAX_DEPTH = 40
MAX_EXPONENT = 100
MAX_DIGITS = 30  # of a numerator and a denominator, in the expression and on the way
_LARGEST = 10**MAX_DIGITS

_CHARACTERS = re.compile(r"[0-9.+\-*/() \t]*")
MOST_STEPS = 4
_LARGEST_VALUE = 9999  # of all values on the way, without the sign
_WORDS = {"+": "add", "-": "subtract", "*": "multiply by", "/": "divide by"}


@dataclass(frozen=True)
class CalculatorRow(Row):
    """An arithmetic question of `steps` operations; the answer is a whole number, decimal or fraction."""

    id: Text
    question: Text
    answer: Text
    steps: Count

    @property
    def hops(self) -> int:
        return self.steps

    def check(self, where: str) -> None:
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]+|/0*[1-9][0-9]*)?", self.answer):
            raise InputError(
                f"{where}: key 'answer' is no number, expected one like 12, -0.5 or 3/4"
            )


class Calculator(Environment):
    success = "correct"
    system = SYSTEM
    offered = (TOOL,)

    def call_tool(self, row: CalculatorRow, call: ToolCall) -> ToolResult:
        try:
            return ToolResult(str(evaluate(call.arguments["expression"])))
        except ValueError as error:
            return ToolResult(f"Error: {error}.", error="bad_arguments")

    def outcome(self, transcript: Transcript) -> str:
        return "answered" if _ANSWER.search(transcript.final) else "no_answer"

    def score(self, row: CalculatorRow, transcript: Transcript) -> dict[str, float]:
        answers = _ANSWER.findall(transcript.final)[-1:]
        return {
            "correct": sum(rewards.numbers_equal(answer, row.answer) for answer in answers),
            "used_tool": float(transcript.calls > 0),
        }


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of decimal numbers, + - * / ** and parentheses.

    Raises ValueError, with what is wrong, for any other text and beyond the limits above.
    """
    text = expression.strip()
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    if not _CHARACTERS.fullmatch(text):
        raise ValueError("an expression has numbers, + - * / ** and parentheses only")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("the expression is not well formed") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ValueError("the expression has too many parts")
    return _value(tree, text, MAX_DEPTH)


def _value(node: ast.expr, text: str, depth: int) -> Fraction:
    if depth == 0:
        raise ValueError("the expression is nested too deep")
    match node:
        case ast.Constant(value=int() | float()):
            # as it is written: the parser has made a float of 0.1
            value = Fraction(text[node.col_offset : node.end_col_offset])
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            value = _value(operand, text, depth - 1)
            value = -value if isinstance(node.op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            operands = _value(left, text, depth - 1), _value(right, text, depth - 1)
            try:
                value = _OPERATIONS[type(op)](*operands)
            except ZeroDivisionError:
                raise ValueError("division by zero") from None
        case _:
            raise ValueError("an expression has numbers, + - * / ** and parentheses only")
    if abs(value.numerator) >= _LARGEST or value.denominator >= _LARGEST:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"an exponent is a whole number of at most {MAX_EXPONENT}")
    return Fraction(base ** int(exponent))


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


def synthetic_calculator(
    count: int, *, steps: Mapping[int, float], seed: int
) -> Iterator[CalculatorRow]:
    """Yield `count` rows; the same arguments give the same rows.

    steps: share of questions with that many operations, 1 to 4. Every value on the way is whole.
    Raises InputError for other numbers of operations.
    """
    task.check_shares("steps", steps, MOST_STEPS)
    for number in range(count):
        rng = random.Random(f"calculator {seed} {number}")
        yield _row(rng, number, task.draw(rng, steps))


def _row(rng: random.Random, number: int, steps: int) -> CalculatorRow:
    value = rng.randint(2, 99)
    expression, words, loose = str(value), [f"Start with {value}"], False
    for _ in range(steps):
        sign, operand, value = rng.choice(_operations(value, rng.sample(range(2, 13), 4)))
        # loose: what is written so far is a sum, and binds less than a product
        parenthesized = f"({expression})" if loose and sign in "*/" else expression
        expression = f"{parenthesized} {sign} {operand}"
        words.append(f"{_WORDS[sign]} {operand}")
        loose = sign in "+-"
    in_words = ", then ".join(words) + ". What is the result?"
    question = in_words if rng.random() < 0.5 else f"What is {expression}?"
    return CalculatorRow(f"{steps}step__calculator_{number}", question, str(value), steps)


def _operations(value: int, operands: list[int]) -> list[tuple[str, int, int]]:
    """Return sign, operand and result of what can come next; a sum or a difference always can."""
    possible = []
    for n in operands:
        possible += [("+", n, value + n), ("-", n, value - n), ("*", n, value * n)]
        if value % n == 0:
            possible.append(("/", n, value // n))
    return [each for each in possible if abs(each[-1]) <= _LARGEST_VALUE]


_said = "<answer>{}</answer>".format


def _oracle(row: CalculatorRow, turn: int) -> str:
    return _said(row.answer) if turn else task.tool_call("calculate", expression=row.answer)


TASK = task.Task(
    row=CalculatorRow,
    synthetic=lambda s: synthetic_calculator(
        s["rows"], steps=task.shares(s["steps"]), seed=s["seed"]
    ),
    build=Calculator,
    policies=task.number_policies(_oracle, lambda row: row.answer, _said),
    # prompts and number of replies from rows (docs/scaling.md), replies assumed
    lengths=task.Lengths(prompt=150, reply=60, turns=3.5, tool=20),
)
