"""Step-0 checks of a trainer's components. docs/probes.md lists them."""

from __future__ import annotations

from rlvr_debug.probes.advantage_scale import advantage_scale
from rlvr_debug.probes.base import Measurement, Subject, readable
from rlvr_debug.probes.context_sensitivity import context_sensitivity
from rlvr_debug.probes.gradient_size import gradient_size
from rlvr_debug.probes.group_integrity import group_integrity
from rlvr_debug.probes.kl_estimator import kl_estimator
from rlvr_debug.probes.kl_gradient import kl_gradient
from rlvr_debug.probes.limits import limits
from rlvr_debug.probes.micro_batch_invariance import micro_batch_invariance
from rlvr_debug.probes.reward_audit import reward_audit
from rlvr_debug.probes.sampler_ratio import sampler_ratio
from rlvr_debug.probes.sequence_diff import sequence_diff
from rlvr_debug.probes.token_roles import token_roles
from rlvr_debug.probes.train_eval_equality import train_eval_equality
from rlvr_debug.probes.weight_sync import weight_sync
from rlvr_debug.probes.weights_move import weights_move

__all__ = ["PROBES", "Measurement", "Subject", "readable"]

# in the order of a training step
PROBES = (
    limits,
    sequence_diff,
    token_roles,
    context_sensitivity,
    reward_audit,
    group_integrity,
    advantage_scale,
    sampler_ratio,
    kl_estimator,
    kl_gradient,
    micro_batch_invariance,
    gradient_size,
    weights_move,
    weight_sync,
    train_eval_equality,
)
