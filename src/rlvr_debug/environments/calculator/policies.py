"""What scripted policies say of an arithmetic question."""

from __future__ import annotations

from rlvr_debug.environments.calculator.rows import CalculatorRow
from rlvr_debug.environments.policies import number_policies, tool_call

_said = "<answer>{}</answer>".format


def oracle(row: CalculatorRow, turn: int) -> str:
    """Compute the answer from itself, then say it."""
    return _said(row.answer) if turn else tool_call("calculate", expression=row.answer)


POLICIES = number_policies(oracle, lambda row: row.answer, _said)
