"""Calculator: arithmetic with a tool, over several turns."""

from __future__ import annotations

from rlvr_debug.environments.calculator.environment import Calculator
from rlvr_debug.environments.calculator.policies import POLICIES
from rlvr_debug.environments.calculator.rows import CalculatorRow
from rlvr_debug.environments.calculator.synthetic import synthetic_calculator
from rlvr_debug.environments.shares import shares
from rlvr_debug.environments.task import Lengths, Task

TASK = Task(
    row=CalculatorRow,
    synthetic=lambda s: synthetic_calculator(s["rows"], steps=shares(s["steps"]), seed=s["seed"]),
    build=Calculator,
    policies=POLICIES,
    # prompts and number of replies from rows (docs/scaling.md), replies assumed
    lengths=Lengths(prompt=150, reply=60, turns=3.5, tool=20),
)
