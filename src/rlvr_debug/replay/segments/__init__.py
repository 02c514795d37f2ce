"""The segments of a training step, in their order: each computes one thing again from its recorded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
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
    processes,
    prompt,
    rewards,
    sampler,
    sampling_settings,
    saved,
    tokens,
    tool_turns,
)

__all__ = ["PROCESSES", "SEGMENTS", "Segment"]

PROCESSES = "several processes"

# what a segment is of: without any, it was not seen
_PARTS: Mapping[str, Callable[[Record], bool]] = {
    PROCESSES: lambda record: bool(record.processes),
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


def _segment(
    module: ModuleType, of: str = "", *, pairs: bool = False, trains: bool = False
) -> Segment:
    return Segment(module.SEGMENT, module.instances, module.KNOBS, of, pairs, trains)


_CALLS, _MICROS = "calls of the sampler", "micro-batches"
_OLD, _REFERENCE = fixed_logprobs.old_instances, fixed_logprobs.reference_instances
SEGMENTS = (
    _segment(processes, of=PROCESSES, trains=True),
    _segment(groups, of="rows"),
    _segment(prompt, of=_CALLS),
    _segment(sampling_settings, of=_CALLS),
    _segment(sampler, of=_CALLS),
    _segment(tool_turns, of=_CALLS),
    _segment(tokens, of=_CALLS),
    _segment(loss_mask, of=_CALLS),
    _segment(rewards, of="rollouts"),
    _segment(advantages, of="rollouts", pairs=True),
    Segment(fixed_logprobs.OLD, _OLD, fixed_logprobs.KNOBS, of="rollouts"),
    Segment(fixed_logprobs.REFERENCE, _REFERENCE, fixed_logprobs.KNOBS, of="rollouts"),
    _segment(importance_weights, of="rollouts"),
    _segment(micro_batches, of=_MICROS, trains=True),
    _segment(model_inputs, of=_MICROS, trains=True),
    _segment(policy_logprobs, of=_MICROS, trains=True),
    _segment(loss, of=_MICROS, pairs=True, trains=True),
    _segment(gradient, of=_MICROS, trains=True),
    _segment(clip, of="updates", trains=True),
    _segment(between, of="updates", trains=True),
    Segment(optimizer_step.SEGMENT, optimizer_step.instances, _STEP, of="updates", trains=True),
    _segment(saved, trains=True),
    _segment(effect, trains=True),
)
