"""How many tokens a reply may have, read through vars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr_debug.environments.base import Environment

STAGE = "max_new_tokens"


def implementation(environment: Environment) -> int:
    limit: int = vars(environment).get("max_new_tokens", environment.max_new_tokens)
    return limit
