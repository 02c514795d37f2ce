"""Calculator: arithmetic with a tool, over several turns."""

from __future__ import annotations

from rlvr_debug.environments.calculator.environment import Calculator
from rlvr_debug.environments.calculator.rows import CalculatorRow
from rlvr_debug.environments.calculator.synthetic import synthetic_calculator
from rlvr_debug.environments.task import Lengths, Task, number_policies, shares, tool_call

_said = "<answer>{}</answer>".format


def oracle(row: CalculatorRow, turn: int) -> str:
    """Compute the answer from itself, then say it."""
    return _said(row.answer) if turn else tool_call("calculate", expression=row.answer)


POLICIES = number_policies(oracle, lambda row: row.answer, _said)


TASK = Task(
    row=CalculatorRow,
    synthetic=lambda s: synthetic_calculator(s["rows"], steps=shares(s["steps"]), seed=s["seed"]),
    build=Calculator,
    policies=POLICIES,
    # prompts and number of replies from rows (docs/scaling.md), replies assumed
    lengths=Lengths(prompt=150, reply=60, turns=3.5, tool=20),
)
