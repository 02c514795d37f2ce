"""What is done with a case: a training with its held-out evaluation, and the trainer's first steps for the check."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from benchmarks.faults.case import SETTINGS, Told, stages_of
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment, Transcript
from rlvr_debug.evaluation import evaluate
from rlvr_debug.files import write_json, write_jsonl
from rlvr_debug.grpo.settings import NO_ROLLOUTS, DiagnosticSettings, TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Training, TrainingResult
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.models.base_model import load_weights
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import CHECKED_ROLLOUTS, CHECKED_STEPS
from rlvr_debug.trainers.own.training import load_policy

if TYPE_CHECKING:
    from rlvr_debug.replay.record import Record

# groups of four whose completions the log holds, at every third step
_LOGGED = DiagnosticSettings(rollouts_every=3, rollouts_kept=32, trackers=())
_CHECKED_SEED = 0


class Place:
    """What all runs of a task share: rows, model, environments. Opened in a folder that is its own."""

    def __init__(self, told: Told, folder: Path) -> None:
        self.told, self.params = told, load_params(ROOT / "params.yaml")
        task = told.task
        self.base_model = ROOT / self.params.base_model
        self.chat = Chat(self.base_model)
        prepare(
            task.environment, {**self.params.data_settings(task.environment), **task.data}, folder
        )
        rows = read_rows(task.environment, folder / "train.jsonl")
        self.rows: list[Row] = rows[: told.first_rows or None]
        self.heldout = read_rows(task.environment, folder / "heldout.jsonl")

    def settings(self) -> TrainingSettings:
        of_task = SETTINGS[self.told.task.environment]
        usual = {**vars(self.params.training), **of_task, "save_steps": 0}
        return TrainingSettings(**{**usual, **self.told.task.training, **self.told.training})

    def training(self, settings: TrainingSettings, seed: int, stages: Stages) -> Training:
        environment = self.environment(self.told.rollouts, self.told.task.noise)
        return Training(self.chat, environment, self.rows, settings, seed, stages)

    def environment(self, rollouts: Mapping[str, Any], noise: float) -> Environment:
        task = self.told.task
        told = {**self.params.settings(task.environment), **task.settings, **rollouts}
        clean = build_environment(task.environment, told)
        return noisy(clean, noise) if noise else clean


def run(place: Place, seed: int, log: Path | None) -> dict[str, Any]:
    """Train and evaluate: held-out rewards, seconds, and a digest of the metrics. log: a folder for TRL's files."""
    begin = time.monotonic()
    settings = place.settings()
    sampler = base_sampler(place.base_model, place.chat)
    scored: list[float] = []
    training = place.training(settings, seed, _observed(stages_of(place.told.faults), scored))
    observer = RunObserver(_LOGGED if log else NO_ROLLOUTS)
    model, reference = load_policy(place.base_model, settings)
    result = train(training, model, reference, sampler, observer=observer)
    if log:
        write_log(result, scored, settings, place.chat, log)
    # as another process would load them
    base = load_weights(place.base_model / "model.safetensors")
    sampler.load(result.adapter.on(base) if result.adapter else result.weights)
    sampler.reset()
    found = evaluate(
        place.heldout,
        place.environment({}, 0.0),
        place.chat,
        sampler,
        temperature=1.0,
        seed=place.params.evaluation.seed,
    )
    metrics = json.dumps(result.metrics, sort_keys=True).encode()
    return {
        "seed": seed,
        "sampled": found["sampled"]["reward"],
        "greedy": found["greedy"]["reward"],
        "log": hashlib.sha256(metrics).hexdigest()[:16],
        "seconds": time.monotonic() - begin,
    }


def _observed(stages: Stages, scored: list[float]) -> Stages:
    """The same, and each rollout's reward, as it is trained on, is noted."""

    def score(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
        parts = stages.score(rollout, environment)
        scored.append(environment.reward(rollout.row, parts))
        return parts

    return replace(stages, score=score)


def first_steps(place: Place, stages: Stages) -> Training:
    """Return the training of few rollouts a step that is looked at, and not evaluated."""
    settings = place.settings()
    few = max(1, CHECKED_ROLLOUTS // settings.group_size)
    short = replace(settings, prompts_per_step=min(few, settings.prompts_per_step))
    return place.training(short, _CHECKED_SEED, stages)


def recorded(place: Place) -> Record:
    """Return the record of the trainer's first steps, for the check: each stage is a function without a name."""
    training = first_steps(place, _veiled(stages_of(place.told.faults)))
    sampler = base_sampler(place.base_model, place.chat)
    # by name: what checks trains nothing again
    recorder = import_module("rlvr_debug.trainers.own.recorder")
    found: Record = recorder.record_training(
        training, *load_policy(place.base_model, training.settings), sampler, CHECKED_STEPS
    )
    return found


def _veiled(stages: Stages) -> Stages:
    """The healthy stages too: nothing tells one from another but what they return."""

    def veil(stage: Any) -> Any:
        return lambda *given, **named: stage(*given, **named)

    return Stages(**{name: veil(stage) for name, stage in vars(stages).items()})


def noisy(environment: Environment, share: float) -> Environment:
    """With a chance of `share` every part of a score is drawn, 0 or 1. The same transcript is judged alike again."""
    return cast(Environment, _Noisy(environment, share))


class _Noisy:
    def __init__(self, environment: Environment, share: float) -> None:
        self._environment, self._share = environment, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def score(self, row: Any, transcript: Transcript) -> Mapping[str, float]:
        parts = self._environment.score(row, transcript)
        judge = random.Random(f"{row.id} {transcript.replies}")
        if judge.random() >= self._share:
            return parts
        drawn = float(judge.random() < 0.5)
        return dict.fromkeys(parts, drawn)


# --- what a user of any trainer can read

# that TRL 1.16.0 logs and our metrics have under the same name and definition (docs/diagnostics.md)
_KEYS = (
    *("step", "loss", "grad_norm", "learning_rate", "entropy", "kl"),
    *(f"completions/{k}_length" for k in ("mean", "min", "max")),
    *(f"completions/{k}_terminated_length" for k in ("mean", "min", "max")),
    "completions/clipped_ratio",
    *(f"clip_ratio/{k}" for k in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")),
    *(f"tools/{k}_frequency" for k in ("call", "failure")),
    *(f"sampling/sampling_logp_difference/{k}" for k in ("mean", "max")),
    *(f"sampling/importance_sampling_ratio/{k}" for k in ("min", "mean", "max")),
)


def write_log(
    result: TrainingResult,
    scored: Sequence[float],
    settings: TrainingSettings,
    chat: Chat,
    out: Path,
) -> None:
    """Write the log of a run as TRL's trainer would have with a vLLM sampler: trainer_state.json and completions.jsonl. scored: of every rollout, the reward that was trained on."""
    size = settings.prompts_per_step * settings.group_size
    history = []
    for row in result.metrics:
        first = (int(row["step"]) - 1) * size
        rewards = torch.tensor(scored[first : first + size]).view(-1, settings.group_size)
        mean, std = float(rewards.mean()), float(rewards.std())
        history.append(
            {
                **{key: row[key] for key in _KEYS if key in row},
                "reward": mean,
                "reward_std": std,
                "rewards/environment/mean": mean,
                "rewards/environment/std": std,
                "frac_reward_zero_std": float((rewards.std(1) < 1e-8).float().mean()),
            }
        )
    completions = [
        {
            "step": kept["step"],
            **_conversation(kept["sampled"]),
            "environment": scored[(kept["step"] - 1) * size + kept["rollout"]],
            "advantage": kept["advantage"],
        }
        for kept in result.rollouts
    ]
    state = {"global_step": settings.steps, "max_steps": settings.steps, "logging_steps": 1}
    write_json(
        out / "trainer_state.json", {**state, "train_batch_size": size, "log_history": history}
    )
    write_jsonl(out / "completions.jsonl", completions)


def _conversation(sampled: dict[str, Any]) -> dict[str, str]:
    """Prompt, and completion as messages. sampled: of a line of rollouts.jsonl."""
    tokens = zip(sampled["role"], sampled["text"], strict=True)
    turns = [
        (role, "".join(t for _, t in texts)) for role, texts in groupby(tokens, lambda x: x[0])
    ]
    names = {"a": "assistant", "t": "tool"}
    messages = [{"role": names[role], "content": text} for role, text in turns if role != "p"]
    return {"prompt": turns[0][1], "completion": json.dumps(messages)}
