"""An arm, and in what a case departs from the control: stages, by its faults, and settings. Either can have each as the other has it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from rlvr_debug.causes import stage_of
from rlvr_debug.causes.unnamed import BLOCKS, unnamed_slug


@dataclass(frozen=True)
class Arm:
    """One way to run. `hypothesis` is "" for the case and the controls.

    design: case, as it is; control, healthy; random_reward, the control with a reward that says nothing;
    repair, the case with one part as in the control; alone, the control with one part as in the case.
    faults: names of planted ones, or of a user's own reward function, `file.py:name`.
    rollouts: what its training rollouts change about the environment's settings; evaluation never does.
    options: settings that only the study's trainer knows.
    """

    name: str
    design: str
    hypothesis: str
    environment: str
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
    options: Mapping[str, Any]
    training: Mapping[str, Any]

    @property
    def rollouts_per_step(self) -> int:
        return int(self.training["prompts_per_step"] * self.training["group_size"])


@dataclass(frozen=True)
class Part:
    """A stage, or a setting and the block that it stands in; of a stage the block is empty."""

    name: str
    block: str = ""

    @property
    def slug(self) -> str:
        """The slug of what no hypothesis names about it."""
        return unnamed_slug(self.name, self.block)


def stage_broken(fault: str) -> str:
    """By a planted fault, or by a user's own reward function."""
    return "score" if ":" in fault else stage_of(fault)


def departures(
    case: Arm, control: Arm, environment: Mapping[str, Any], watching: Set[str]
) -> list[Part]:
    """Return every stage and setting of the case that is not the control's.

    environment: its settings, which rollouts have where an arm says nothing. watching: options that change nothing.
    """
    usual = {"rollouts": environment, "options": control.options, "training": control.training}
    stages = [Part(stage_broken(fault)) for fault in case.faults]
    return stages + [
        Part(name, block)
        for block in BLOCKS
        for name, value in getattr(case, block).items()
        if name not in watching and value != usual[block].get(name)
    ]


def with_part(arm: Arm, other: Arm, part: Part) -> Arm:
    """Return the first arm with that part as the other one has it."""
    if not part.block:
        kept = (fault for fault in arm.faults if stage_broken(fault) != part.name)
        given = (fault for fault in other.faults if stage_broken(fault) == part.name)
        return replace(arm, faults=(*kept, *given))
    theirs = getattr(other, part.block)
    settings = {key: value for key, value in getattr(arm, part.block).items() if key != part.name}
    settings |= {part.name: theirs[part.name]} if part.name in theirs else {}
    changed: dict[str, Any] = {part.block: settings}
    return replace(arm, **changed)
