"""The trained prompt is rendered without the tool schemas that the sampler was sent.

verifiers 0.1.3 (envs/environment.py line 651) and 0.1.6.post0; row 0a of known bugs.
"""

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, Segment

STAGE = "trained_prompt"


def implementation(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    return chat.prompt(env.messages(rollout.row), tools=[])
