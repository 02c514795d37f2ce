"""GSM8K: word problems in arithmetic."""

from __future__ import annotations

from rlvr_debug.environments.gsm8k.environment import GSM8K
from rlvr_debug.environments.gsm8k.rows import GSM8KRow
from rlvr_debug.environments.gsm8k.synthetic import synthetic_gsm8k
from rlvr_debug.environments.task import Lengths, Task, number_policies, shares


def oracle(row: GSM8KRow, turn: int) -> str:
    """Work it out as the row says."""
    return row.answer


POLICIES = number_policies(oracle, lambda row: row.final, "#### {}".format)


TASK = Task(
    row=GSM8KRow,
    # the official schema has no id
    numbered=True,
    synthetic=lambda s: synthetic_gsm8k(s["rows"], steps=shares(s["steps"]), seed=s["seed"]),
    build=GSM8K,
    policies=POLICIES,
    # prompts from rows (docs/scaling.md), replies assumed
    lengths=Lengths(prompt=95, reply=250, turns=1, tool=0),
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
