"""A tool turn is a copy of the sampled one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr_debug.sampling.chat import Chat
    from rlvr_debug.sampling.rollouts import Segment

STAGE = "trained_tool_turn"


def implementation(segment: Segment, chat: Chat) -> list[int]:
    return [token for token in segment.ids]  # noqa: C416
