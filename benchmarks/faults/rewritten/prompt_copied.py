"""The trained prompt is a copy of the sampled one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr_debug.environments.base import Environment
    from rlvr_debug.sampling.chat import Chat
    from rlvr_debug.sampling.rollouts import Rollout, Segment

STAGE = "trained_prompt"


def implementation(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    return [*segment.ids]
