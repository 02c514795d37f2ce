"""Arithmetic questions made up for the calculator, as an expression or in words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from rlvr_debug.environments.calculator.rows import CalculatorRow
from rlvr_debug.environments.task import check_shares, draw

MOST_STEPS = 4
_LARGEST = 9999  # of all values on the way, without the sign
_WORDS = {"+": "add", "-": "subtract", "*": "multiply by", "/": "divide by"}


def synthetic_calculator(
    count: int, *, steps: Mapping[int, float], seed: int
) -> Iterator[CalculatorRow]:
    """Yield `count` rows; the same arguments give the same rows.

    steps: share of questions with that many operations, 1 to 4. Every value on the way is whole.
    Raises InputError for other numbers of operations.
    """
    check_shares("steps", steps, MOST_STEPS)
    for number in range(count):
        rng = random.Random(f"calculator {seed} {number}")
        yield _row(rng, number, draw(rng, steps))


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
    return [each for each in possible if abs(each[-1]) <= _LARGEST]
