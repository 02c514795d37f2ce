"""The prompt goes through its text without special tokens and is tokenised anew.

rllm-org/rllm PR 272; row 21 of known bugs.
"""

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, Segment

STAGE = "trained_prompt"


def implementation(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    return chat.encode(chat.tokenizer.decode(segment.ids, skip_special_tokens=True))
