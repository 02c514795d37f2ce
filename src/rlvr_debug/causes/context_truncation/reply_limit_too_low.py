"""Replies are cut at a quarter of the tokens that the environment allows: no answer is finished.

autocontext PR 1067, a limit of 256 tokens; row 36 of known bugs. Evaluation has the whole limit.
"""

from rlvr_debug.environments.base import Environment

STAGE = "max_new_tokens"


def implementation(environment: Environment) -> int:
    return environment.max_new_tokens // 4
