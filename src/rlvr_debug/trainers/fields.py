"""Our settings as fields of the GRPOConfig of another trainer that stands on transformers' own: its config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import TrainingSettings


@dataclass(frozen=True)
class Fields:
    """What a config.yaml says.

    same: settings of the same name. renamed: ours to theirs. other: fields that
    follow from our settings in another way, or are the run's. fixed: settings that the trainer does in one way, and
    that way. lacking: values of other settings that it does not have. defaults: fields that depart from the trainer's own defaults in every run, unless options say otherwise.
    """

    trainer: str
    same: list[str]
    renamed: Mapping[str, str]
    other: list[str]
    fixed: Mapping[str, Any]
    lacking: Mapping[str, list[Any]]
    defaults: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> Fields:
        return Fields(
            trainer=path.parent.name, **{"lacking": {}, "defaults": {}, **read_yaml(path)}
        )

    @property
    def taken(self) -> frozenset[str]:
        """Return the fields that follow from our settings: options may not say otherwise."""
        return frozenset({*self.same, *self.renamed.values(), *self.other})

    def unmapped(self, training: Mapping[str, Any]) -> list[str]:
        """Return the settings that the trainer has no counterpart for, as `key value`."""
        other = [key for key, value in self.fixed.items() if training.get(key, value) != value]
        without = [key for key, values in self.lacking.items() if training.get(key) in values]
        return [f"{key} {training[key]}" for key in other + without]

    def of(self, settings: TrainingSettings) -> dict[str, Any]:
        """Return keyword arguments of GRPOConfig, where a step of ours is num_iterations optimizer steps."""
        values = asdict(settings)
        rollouts = settings.prompts_per_step * settings.group_size
        parts = settings.gradient_accumulation_steps
        if rollouts % parts:
            raise InputError(
                f"training.gradient_accumulation_steps is {parts}, expected a divisor of a batch's {rollouts} "
                f"rollouts with trainer {self.trainer}"
            )
        return {
            **self.defaults,
            **{name: values[name] for name in self.same},
            **{theirs: values[ours] for ours, theirs in self.renamed.items()},
            "delta": settings.delta or None,
            "lr_scheduler_type": settings.schedule,
            "max_steps": settings.steps * settings.num_iterations,
            "per_device_train_batch_size": rollouts // parts,
            "logging_steps": settings.num_iterations,
        }
