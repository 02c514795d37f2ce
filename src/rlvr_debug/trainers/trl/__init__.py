"""TRL's GRPOTrainer, in an environment of its own. callback.py serves scripts that are not this project's, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.trl.config import FIELDS, corrects


class _TRL(ProgramTrainer):
    name = "trl"
    # what a reward function and GRPOConfig can change about TRL's own stages
    stages = ("max_new_tokens", "score")
    takes_reward = True
    taken_options = FIELDS.taken
    to_fill_in = "cases.mine.reward, your reward function as file.py:name (docs/trainers.md)"

    def unmapped(self, training: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        return FIELDS.unmapped({k: v for k, v in training.items() if not corrects(k, options)})

    def venvs(self, command: Mapping[str, Any]) -> list[str]:
        return ["trl"]

    def words(self, command: Mapping[str, Any]) -> tuple[str, ...]:
        return ("python", "-m", "rlvr_debug.trainers.trl.program")


TRAINER = _TRL()
