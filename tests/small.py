"""A training that takes no time: a random model that likes tool calls, a few rows, two steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.musique.rows import MuSiQueRow, synthetic_musique
from rlvr_debug.grpo.loss import Experience
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.settings import NO_ROLLOUTS, DiagnosticSettings, TrainingSettings
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Checkpoints, Observer, Training, TrainingResult
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Run

PARAMS = load_params(ROOT / "params.yaml")
SETTINGS = replace(
    PARAMS.training,
    steps=2,
    prompts_per_step=3,
    group_size=4,
    learning_rate=3e-3,
    warmup_steps=0,
    num_iterations=1,
)
ROWS: list[MuSiQueRow] = list(
    synthetic_musique(8, hops={2: 1}, paragraphs=4, same_relation=0, seed=0)
)
AGGREGATIONS, LEVELS, SCALINGS = (
    get_args(get_type_hints(TrainingSettings)[name])
    for name in ("aggregation", "importance_sampling_level", "scale_rewards")
)
Train = Callable[..., TrainingResult]


def random_reward(**training: Any) -> Run:
    """Return a run of two steps in which, whatever the model says, some of it earns more than the rest."""
    found = next(run for run in runs(PARAMS) if run.arm == "random-reward")
    small: dict[str, Any] = {
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 4,
        "num_iterations": 1,
    }
    small |= {"learning_rate": 1e-2, "warmup_steps": 0}
    return replace(found, training=replace(found.training, **{**small, **training}))


def held(
    advantages: Tensor,
    mask: Tensor,
    sampled: Tensor,
    sampler: Tensor,
    reference: Tensor | None,
    old: Tensor | None,
    totals: Totals,
) -> Experience:
    """Return sequences of any tokens, without padding, and what a loss holds their log-probabilities against."""
    real = torch.ones_like(mask)
    return Experience(
        real.long(), sampled, sampler, real, mask, real, advantages, reference, old, totals
    )


def small_environment() -> Environment:
    parts = ("exact_match", "f1", "recall", "precision", "citation", "format")
    limits = {"retrieval": "golden", "top_n": 2, "max_turns": 3, "max_new_tokens": 8}
    return build_environment("musique", {**limits, "weights": dict.fromkeys(parts, 1)})


def small_training(chat: Chat, talkative: Callable[[int], Any]) -> Train:
    """(stages, checkpoints, diagnostics, log, other, seed, observer, **settings) -> some steps, always from the same model.

    other: stages with which those of the run are compared.
    """
    environment = small_environment()

    def run(
        stages: Stages | None = None,
        checkpoints: Checkpoints | None = None,
        diagnostics: DiagnosticSettings = NO_ROLLOUTS,
        log: Callable[[Mapping[str, Any]], None] = lambda row: None,
        other: Stages | None = None,
        seed: int = 0,
        observer: Observer | None = None,
        **changes: Any,
    ) -> TrainingResult:
        model, reference = talkative(0), talkative(0)
        sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
        settings = replace(SETTINGS, **changes)
        training = Training(chat, environment, ROWS, settings, seed, stages or Stages())
        if other:
            shadow = Shadow(training.stages, other)
            training = replace(training, stages=shadow.stages, shadow=shadow)
        observer = observer or RunObserver(diagnostics, log)
        return train(training, model, reference, sampler, checkpoints, observer)

    return run
