"""The segments of a training step, in their order: each computes one thing again from its recorded inputs."""

from __future__ import annotations

from rlvr_debug.replay.segments.advantages import ADVANTAGES
from rlvr_debug.replay.segments.gradient import CLIP, GRADIENT
from rlvr_debug.replay.segments.importance_weights import WEIGHTS
from rlvr_debug.replay.segments.logprobs import OLD, POLICY, REFERENCE, SAMPLER
from rlvr_debug.replay.segments.loss import LOSS
from rlvr_debug.replay.segments.loss_mask import MASK
from rlvr_debug.replay.segments.micro_batches import BATCHES, INPUTS
from rlvr_debug.replay.segments.optimizer_step import STEP
from rlvr_debug.replay.segments.prompts import GROUPS, PROMPT, SETTINGS
from rlvr_debug.replay.segments.rewards import REWARDS
from rlvr_debug.replay.segments.tokens import TOKENS, TURNS
from rlvr_debug.replay.segments.weights import BETWEEN, SAVED
from rlvr_debug.replay.segments.whole import EFFECT, PROCESSES

SEGMENTS = (
    *(PROCESSES, GROUPS, PROMPT, SETTINGS, SAMPLER, TURNS, TOKENS, MASK, REWARDS, ADVANTAGES),
    *(OLD, REFERENCE, WEIGHTS, BATCHES, INPUTS, POLICY, LOSS, GRADIENT, CLIP),
    *(BETWEEN, STEP, SAVED, EFFECT),
)
