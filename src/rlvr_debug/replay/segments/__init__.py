"""The segments of a training step, in their order: each computes one thing again from its recorded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlvr_debug.replay.judge import Instance
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import (
    advantages,
    between,
    clip,
    effect,
    fixed_logprobs,
    gradient,
    groups,
    importance_weights,
    loss,
    loss_mask,
    micro_batches,
    model_inputs,
    optimizer_step,
    policy_logprobs,
    prompt,
    rewards,
    sampler,
    sampling_settings,
    saved,
    tokens,
    tool_turns,
)

__all__ = ["SEGMENTS", "Segment"]


@dataclass(frozen=True)
class Segment:
    """A segment: its name, and what of it is in a record. pairs: whether two variants at once are tried."""

    name: str
    instances: Callable[[Record, Network], Iterator[Instance]]
    pairs: bool = False


SEGMENTS = (
    Segment(groups.SEGMENT, groups.instances),
    Segment(prompt.SEGMENT, prompt.instances),
    Segment(sampling_settings.SEGMENT, sampling_settings.instances),
    Segment(sampler.SEGMENT, sampler.instances),
    Segment(tool_turns.SEGMENT, tool_turns.instances),
    Segment(tokens.SEGMENT, tokens.instances),
    Segment(loss_mask.SEGMENT, loss_mask.instances),
    Segment(rewards.SEGMENT, rewards.instances),
    Segment(advantages.SEGMENT, advantages.instances, pairs=True),
    Segment(fixed_logprobs.OLD, fixed_logprobs.old_instances),
    Segment(fixed_logprobs.REFERENCE, fixed_logprobs.reference_instances),
    Segment(importance_weights.SEGMENT, importance_weights.instances),
    Segment(micro_batches.SEGMENT, micro_batches.instances),
    Segment(model_inputs.SEGMENT, model_inputs.instances),
    Segment(policy_logprobs.SEGMENT, policy_logprobs.instances),
    Segment(loss.SEGMENT, loss.instances, pairs=True),
    Segment(gradient.SEGMENT, gradient.instances),
    Segment(clip.SEGMENT, clip.instances),
    Segment(between.SEGMENT, between.instances),
    Segment(optimizer_step.SEGMENT, optimizer_step.instances),
    Segment(saved.SEGMENT, saved.instances),
    Segment(effect.SEGMENT, effect.instances),
)
