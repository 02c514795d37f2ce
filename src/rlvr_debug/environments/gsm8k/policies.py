"""What scripted policies say of a word problem."""

from __future__ import annotations

from rlvr_debug.environments.gsm8k.rows import GSM8KRow
from rlvr_debug.environments.policies import number_policies


def oracle(row: GSM8KRow, turn: int) -> str:
    """Work it out as the row says."""
    return row.answer


POLICIES = number_policies(oracle, lambda row: row.final, "#### {}".format)
