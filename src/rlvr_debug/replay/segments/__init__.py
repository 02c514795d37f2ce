"""The segments of a training step, in their order: each computes one thing again from its recorded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rlvr_debug.blocks import Keyed
from rlvr_debug.replay.finding import NotSeen
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


# what a segment is of: without any, it was not seen
_PARTS: Mapping[str, Callable[[Record], bool]] = {
    "rows": lambda record: any(each.rows for each in record.generations),
    "calls of the sampler": lambda record: any(each.calls for each in record.generations),
    "rollouts": lambda record: bool(record.generations),
    "updates": lambda record: bool(record.updates),
    "micro-batches": lambda record: any(each.micro_batches for each in record.updates),
}


_STEP = Keyed(
    {
        **dict.fromkeys(("frozen", "held_only", "own_rate", "first", "state_lost"), bool),
        **dict.fromkeys(("corrected", "coupled", "own_decay", "own_kind"), bool),
        "times": float,
        "decay": float,
        "stored": Literal["bfloat16"],
    }
)


@dataclass(frozen=True)
class Segment:
    """A segment: its name, and what of it is in a record. knobs: types of what a variant may say, by name.

    of: which parts of a record it looks at.
    pairs: whether two variants at once are tried. trains: whether it is of what is trained on, and not of how that was made.
    """

    name: str
    instances: Callable[[Record, Network], Iterator[Instance]]
    knobs: Keyed
    of: str = ""
    pairs: bool = False
    trains: bool = False

    def check(self, record: Record) -> None:
        """Raise NotSeen where the record has no part that it looks at."""
        if self.of and not _PARTS[self.of](record):
            raise NotSeen(f"no {self.of} were recorded")


SEGMENTS = (
    Segment(groups.SEGMENT, groups.instances, groups.KNOBS, of="rows"),
    Segment(prompt.SEGMENT, prompt.instances, prompt.KNOBS, of="calls of the sampler"),
    Segment(
        sampling_settings.SEGMENT,
        sampling_settings.instances,
        sampling_settings.KNOBS,
        of="calls of the sampler",
    ),
    Segment(sampler.SEGMENT, sampler.instances, sampler.KNOBS, of="calls of the sampler"),
    Segment(tool_turns.SEGMENT, tool_turns.instances, tool_turns.KNOBS, of="calls of the sampler"),
    Segment(tokens.SEGMENT, tokens.instances, tokens.KNOBS, of="calls of the sampler"),
    Segment(loss_mask.SEGMENT, loss_mask.instances, loss_mask.KNOBS, of="calls of the sampler"),
    Segment(rewards.SEGMENT, rewards.instances, rewards.KNOBS, of="rollouts"),
    Segment(advantages.SEGMENT, advantages.instances, advantages.KNOBS, of="rollouts", pairs=True),
    Segment(fixed_logprobs.OLD, fixed_logprobs.old_instances, fixed_logprobs.KNOBS, of="rollouts"),
    Segment(
        fixed_logprobs.REFERENCE,
        fixed_logprobs.reference_instances,
        fixed_logprobs.KNOBS,
        of="rollouts",
    ),
    Segment(
        importance_weights.SEGMENT,
        importance_weights.instances,
        importance_weights.KNOBS,
        of="rollouts",
    ),
    Segment(
        micro_batches.SEGMENT,
        micro_batches.instances,
        micro_batches.KNOBS,
        of="micro-batches",
        trains=True,
    ),
    Segment(
        model_inputs.SEGMENT,
        model_inputs.instances,
        model_inputs.KNOBS,
        of="micro-batches",
        trains=True,
    ),
    Segment(
        policy_logprobs.SEGMENT,
        policy_logprobs.instances,
        policy_logprobs.KNOBS,
        of="micro-batches",
        trains=True,
    ),
    Segment(loss.SEGMENT, loss.instances, loss.KNOBS, of="micro-batches", pairs=True, trains=True),
    Segment(gradient.SEGMENT, gradient.instances, gradient.KNOBS, of="micro-batches", trains=True),
    Segment(clip.SEGMENT, clip.instances, clip.KNOBS, of="updates", trains=True),
    Segment(between.SEGMENT, between.instances, between.KNOBS, of="updates", trains=True),
    Segment(optimizer_step.SEGMENT, optimizer_step.instances, _STEP, of="updates", trains=True),
    Segment(saved.SEGMENT, saved.instances, saved.KNOBS, trains=True),
    Segment(effect.SEGMENT, effect.instances, effect.KNOBS, trains=True),
)
