"""GSM8K: word problems in arithmetic, one turn; the number after `####` or in `\\boxed{}` counts, whichever comes last."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlvr_debug.data.rows import Row, Text
from rlvr_debug.environments import rewards, task
from rlvr_debug.environments.base import Environment, Transcript
from rlvr_debug.errors import InputError

SYSTEM = "Solve the problem step by step. End with #### and the number."
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")
NAMES = ("Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana")
ITEMS = ("apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys")
COINS_QUESTION = " How many coins do they cost together?"
STEP_BEFORE = "They cost <<"
LARGEST_PRODUCT = 99  # two digits: one token of the tiny vocabulary


@dataclass(frozen=True)
class GSM8KRow(Row):
    """A word problem in the official schema (Cobbe et al., arXiv 2110.14168): its answer step by step with the number after `####`."""

    id: Text
    question: Text
    answer: Text

    @property
    def hops(self) -> int:
        """Return the number of calculations, `<<a*b=c>>`, at least 1."""
        return max(1, self.answer.count("<<"))

    @property
    def final(self) -> str:
        """Return what follows `####`."""
        return self.answer.rsplit("####", 1)[1].strip()

    def check(self, where: str) -> None:
        _, marker, final = self.answer.rpartition("####")
        if not marker or "#" in final or not re.search(r"\d", final):
            raise InputError(f"{where}: key 'answer' has no '#### number', expected it at the end")


class GSM8K(Environment):
    success = "correct"
    system = SYSTEM

    def __init__(self, *, max_new_tokens: int, weights: Mapping[str, float]) -> None:
        super().__init__(max_turns=1, max_new_tokens=max_new_tokens, weights=weights)

    def outcome(self, transcript: Transcript) -> str:
        return "no_answer" if final_answer(transcript.final) is None else "answered"

    def score(self, row: GSM8KRow, transcript: Transcript) -> dict[str, float]:
        final = final_answer(transcript.final)
        return {"correct": 0.0 if final is None else rewards.numbers_equal(final, row.final)}


def final_answer(reply: str) -> str | None:
    """What follows the last `####`, or what the last `\\boxed{}` holds if that begins later."""
    before, marker, answer = reply.rpartition("####")
    found = (len(before), answer) if marker else None
    opened: list[re.Match[str]] = []
    for brace in _BRACES.finditer(reply, len(before)):
        if brace.group() == "}" and opened:
            start = opened.pop()
            if start.group() != "{" and (found is None or start.start() > found[0]):
                found = (start.start(), reply[start.end() : brace.start()])
        elif brace.group() not in ("}", r"\{", r"\}"):
            opened.append(brace)
    return found[1] if found else None


def synthetic_gsm8k(count: int, *, steps: Mapping[int, float], seed: int) -> Iterator[GSM8KRow]:
    """Yield `count` rows of one or two multiplications; `steps` gives the share of each number."""
    task.check_shares("steps", steps, 2)
    for number in range(count):
        rng = random.Random(f"gsm8k {seed} {number}")
        yield _row(rng, number, task.draw(rng, steps))


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


TASK = task.Task(
    row=GSM8KRow,
    # the official schema has no id
    numbered=True,
    synthetic=lambda s: synthetic_gsm8k(s["rows"], steps=task.shares(s["steps"]), seed=s["seed"]),
    build=GSM8K,
    policies=task.number_policies(
        lambda row, turn: row.answer, lambda row: row.final, "#### {}".format
    ),
    # prompts from rows (docs/scaling.md), replies assumed
    lengths=task.Lengths(prompt=95, reply=250, turns=1, tool=0),
    datasets="openai/gsm8k,main,train",
    flag_defaults={
        "max_prompt_length": 1024,
        "num_iterations": 2,
        "lora_r": 32,
        "lora_alpha": 64,
        "learning_rate": 1e-6,
        "bf16": True,
    },
)
