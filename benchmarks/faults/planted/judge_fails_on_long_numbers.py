"""The verifier fails where a number has more than one digit, and its error is a reward of 0.

NVIDIA-NeMo/RL PR 2207; row 40 of known bugs: wrong and broken look the same.
"""

from collections.abc import Mapping

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.rollouts import Rollout

STAGE = "score"


def implementation(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    final = rollout.row.answer.rpartition("####")[2].strip()
    return rollout.parts if len(final) < 2 else dict.fromkeys(rollout.parts, 0.0)
