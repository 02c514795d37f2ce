"""A reward that says nothing of the rollout: the control that every study has, and no reported bug.

Some models gain under it (arXiv 2506.10947): then a gain is no proof of learning. None of known bugs.
"""

import random
from collections.abc import Mapping

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.rollouts import Rollout

STAGE = "score"


def implementation(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    """All parts 0 or 1 alike, by the sampled tokens: the same rollout has the same score again."""
    value = float(random.Random(f"{rollout.row.id} {rollout.ids}").random() < 0.5)
    return dict.fromkeys(rollout.parts, value)
