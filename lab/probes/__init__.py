"""Step-0 checks of a trainer's components. docs/probes.md lists them."""

from __future__ import annotations

from lab.probes.base import Measurement, Subject, readable
from lab.probes.evaluation import train_eval_equality
from lab.probes.kl import kl_estimator, kl_gradient
from lab.probes.rewards import advantage_scale, group_integrity, reward_audit
from lab.probes.sampler import sampler_ratio, weight_sync
from lab.probes.sequences import context_sensitivity, limits, sequence_diff, token_roles
from lab.probes.update import gradient_size, micro_batch_invariance, weights_move

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
