"""Word problems made up in the official schema, small enough for the tiny model's vocabulary."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from rlvr_debug.environments.gsm8k.rows import GSM8KRow
from rlvr_debug.environments.task import check_shares, draw

NAMES = ("Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana")
ITEMS = ("apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys")
COINS_QUESTION = " How many coins do they cost together?"
STEP_BEFORE = "They cost <<"
LARGEST_PRODUCT = 99  # two digits: one token of the tiny vocabulary


def synthetic_gsm8k(count: int, *, steps: Mapping[int, float], seed: int) -> Iterator[GSM8KRow]:
    """Yield `count` rows of one or two multiplications; `steps` gives the share of each number."""
    check_shares("steps", steps, 2)
    for number in range(count):
        rng = random.Random(f"gsm8k {seed} {number}")
        yield _row(rng, number, draw(rng, steps))


def _row(rng: random.Random, number: int, steps: int) -> GSM8KRow:
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    while True:
        a, b, c = (rng.randint(2, 9) for _ in range(3))
        if steps == 1 or a * b * c <= LARGEST_PRODUCT:
            break
    question = f"{name} has {a} boxes with {b} {item} each."
    answer = f"There are <<{a}*{b}={a * b}>>{a * b} {item}.\n"
    total = a * b
    if steps == 1:
        question += f" How many {item} does {name} have?"
    else:
        question += f" Each costs {c} coins." + COINS_QUESTION
        total *= c
        answer += f"{STEP_BEFORE}{a * b}*{c}={total}>>{total} coins.\n"
    return GSM8KRow(
        id=f"gsm8k-synthetic-{number}", question=question, answer=f"{answer}#### {total}"
    )
