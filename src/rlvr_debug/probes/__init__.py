"""Step-0 checks of a trainer's components."""

from __future__ import annotations

from rlvr_debug.probes.advantage_scale import advantage_scale
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.context_sensitivity import context_sensitivity
from rlvr_debug.probes.kl_estimator import kl_estimator
from rlvr_debug.probes.sequence_diff import sequence_diff
from rlvr_debug.probes.weight_sync import weight_sync

__all__ = ["PROBES", "Measurement", "Subject"]

PROBES = (context_sensitivity, sequence_diff, weight_sync, kl_estimator, advantage_scale)
