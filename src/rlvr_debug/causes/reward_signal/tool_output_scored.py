"""What the tools returned is scored as the model's own text: an answer that they show is a right one.

verl PR 6392; row 18 of known bugs.
"""

from collections.abc import Mapping

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.rollouts import Rollout

STAGE = "score"

# the parts that judge the answer, of any environment
_ANSWER = {"exact_match", "f1", "correct"}


def implementation(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    returned = [text for s in rollout.segments if s.role == "tool" for text in s.texts]
    if not any(rollout.row.answer in text for text in returned):
        return rollout.parts
    return {name: 1.0 if name in _ANSWER else part for name, part in rollout.parts.items()}
