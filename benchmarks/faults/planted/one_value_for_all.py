"""The reward function returns one value for the batch, and it is broadcast: all rewards are equal.

TRL 6533; row 8 of known bugs. The value is a constant here, as no batch is seen where a rollout is scored.
"""

from collections.abc import Mapping

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.rollouts import Rollout

STAGE = "score"


def implementation(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    return dict.fromkeys(rollout.parts, 0.5)
