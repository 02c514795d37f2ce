"""A program of the user's, named by `command` in params.yaml."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlvr_debug.trainers import Demands
from rlvr_debug.trainers.program import ProgramTrainer


class _Command(ProgramTrainer):
    name = "command"
    command_keys = ("program", "environment", "stall_seconds", "random_reward")
    to_fill_in = "command.program, your trainer's command (docs/trainers.md: the protocol)"
    placeholders: ClassVar = {"command": {"program": ["python", "./train.py"]}}

    def refused(self, demands: Demands) -> str:
        lacks = "program" not in demands.command
        return "key 'command.program' is missing, expected with trainer command" if lacks else ""

    def venvs(self, command: Mapping[str, Any]) -> list[str]:
        return [command["environment"]] if "environment" in command else []

    def words(self, command: Mapping[str, Any]) -> Sequence[str]:
        words: Sequence[str] = command["program"]
        return words

    def random_reward(
        self, options: Mapping[str, Any], command: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], dict[str, Any]] | None:
        """The stages of a program cannot be swapped, but its options may say how it rewards at random."""
        if "random_reward" not in command:
            return None
        return (), {**options, **command["random_reward"]}


TRAINER = _Command()
