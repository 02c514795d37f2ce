"""A tool's turn is trained on without what surrounds it: the generation prompt after it is missing.

verifiers 0.1.3, envs/environment.py lines 683 to 691; row 0b of known bugs. 0.1.6.post0 mends it but for a
line break.
"""

from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Segment

STAGE = "trained_tool_turn"


def implementation(segment: Segment, chat: Chat) -> list[int]:
    return chat.tool_turn_rendered_alone(segment.texts)
