"""TRL's GRPOTrainer, in an environment of its own. callback.py serves scripts that are not this project's, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers import Run
from rlvr_debug.trainers.program import Fields, ProgramTrainer

FIELDS = Fields.read(Path(__file__).with_name("config.yaml"))

_CAP = "importance_sampling_cap"


def corrects(setting: str, options: Mapping[str, Any]) -> bool:
    """Return whether a setting is the correction for a sampler, and the options say that there is one: vLLM."""
    return setting == _CAP and bool(options.get("use_vllm"))


def options_of(run: Run, environment: Environment, limit: int) -> dict[str, Any]:
    """Return all keyword arguments of GRPOConfig that a run has, but for places.

    A cap of importance weights switches TRL's correction on, in ours of its four modes unless the options name another.
    """
    cap, options = run.training.importance_sampling_cap, run.options
    arguments = {**config_of(run.training, environment, limit), **options}
    if not cap:
        return arguments
    mode = options.get("vllm_importance_sampling_mode", "token_truncate")
    return {
        **arguments,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": cap,
    }


def config_of(settings: TrainingSettings, environment: Environment, limit: int) -> dict[str, Any]:
    """Return keyword arguments of GRPOConfig, but for places; limit is in tokens of a reply."""
    tools = {"max_tool_calling_iterations": environment.max_turns - 1} if environment.tools else {}
    return {
        **FIELDS.of(settings),
        "loss_type": settings.aggregation,
        "model_init_kwargs": {
            "attn_implementation": settings.attn_implementation,
            "dtype": "float32",
        },
        # of each reply, while max_completion_length counts all of them and the tools' results
        "generation_kwargs": {"max_new_tokens": limit},
        **tools,
    }


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
