"""Probes of a trainer that only files are known of: its case is run for one step and for two.

What it sampled, what it was sampled with, what it trained on and the weights it saved are held against the
base model and our environment. Probes that ask for more than these files are not run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.arms import Run
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_json
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.models.base_model import load_model
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.group_integrity import group_integrity
from rlvr_debug.probes.limits import limits
from rlvr_debug.probes.reward_audit import reward_audit
from rlvr_debug.probes.sampler_ratio import sampler_ratio
from rlvr_debug.probes.token_roles import token_roles
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study import one_thread
from rlvr_debug.trainers.program import Program, Recording, record
from rlvr_debug.trainers.records import recorded_rollout

__all__ = ["probe_recording", "recorded_probes"]

_MOVED = 0.01


@dataclass(frozen=True)
class _Study:
    """What all recordings of a case share. trained_in: the environment of its training rollouts."""

    run: Run
    environment: Environment
    trained_in: Environment
    rows: Mapping[str, Row]
    base_model: Path
    chat: Chat


def probe_recording(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    program: Program,
) -> list[Measurement]:
    """Run the program twice and measure; also into a JSON file. Raises InputError as `record` does."""
    one_thread()
    found, place = [], out.with_suffix("")
    for steps in (1, 2):
        # an update at the first step, whatever the warm-up
        training = replace(run.training, steps=steps, save_steps=0, warmup_steps=0)
        told = replace(run, training=training)
        files = (environment, base_model, rows, place / str(steps), program)
        found.append(record(told, *files, rollouts_every=1, rollouts_kept=0, what="probe of"))
    study = _Study(
        run,
        build_environment(run.environment, environment),
        build_environment(run.environment, {**environment, **run.rollouts}),
        found[0].rows,
        base_model,
        Chat(base_model),
    )
    measurements = recorded_probes(study, *found)
    write_json(out, {m.probe: asdict(m) for m in measurements})
    shutil.rmtree(place)
    return measurements


def recorded_probes(study: _Study, first: Recording, second: Recording) -> list[Measurement]:
    """first, second: of one step and of two, with the same seed. In the order of a training step."""
    rollouts = first.rollouts
    if not rollouts:
        return _weights_move(study, first)
    if len(rollouts) % study.run.training.group_size:
        raise InputError(
            f"run {study.run.environment}/{study.run.arm}: {len(rollouts)} rollouts were recorded of step "
            f"1, expected a multiple of group_size {study.run.training.group_size}"
        )
    subject = _subject(study, rollouts)
    found = [limits(subject)]
    if all("loss" in row for row in rollouts):
        found.append(token_roles(subject))
    found += [reward_audit(subject), group_integrity(subject)]
    known = all("logprobs" in row for row in [*rollouts, *second.rollouts])
    if known:
        found.append(sampler_ratio(subject))
    found += _weights_move(study, first)
    same = second.rollouts[: len(rollouts)] == rollouts
    if known and same and (measured := _weight_sync(study, first, second)):
        found.append(measured)
    return [*found, _prompts(subject)]


def _subject(study: _Study, recorded: Sequence[Mapping[str, Any]]) -> Subject:
    chat, base = study.chat, study.base_model
    rollouts = [recorded_rollout(row, study.rows, study.trained_in, study.chat) for row in recorded]
    limit = study.trained_in.max_new_tokens
    stages = replace(Stages(), max_new_tokens=lambda _: limit)
    if all("loss" in row for row in recorded):
        masks = [row["loss"] for row in recorded]
        stages = replace(stages, loss_mask=lambda sampled, real: _padded(masks, real.shape[1]))
    if all("advantage" in row for row in recorded):
        gains = torch.tensor([row["advantage"] for row in recorded])
        stages = replace(
            stages, advantages=lambda rewards, scaling, epsilon: gains.view_as(rewards)
        )
    return Subject(
        Policy(load_model(base, "sdpa"), None, None),
        base_sampler(base, chat),
        stages,
        study.run.training,
        study.environment,
        chat,
        rollouts,
        torch.tensor([float(row["reward"]) for row in recorded]),
    )


def _padded(masks: Sequence[Sequence[int]], width: int) -> Tensor:
    return torch.tensor([[*mask, *[0] * (width - len(mask))] for mask in masks]).bool()


def _weights_move(study: _Study, first: Recording) -> list[Measurement]:
    """None where there was no gradient to move by."""
    if not first.metrics[0]["grad_norm"]:
        return []
    before = load_model(study.base_model, "sdpa").state_dict()
    changes = [(first.weights[name] - tensor).flatten() for name, tensor in before.items()]
    change = torch.cat(changes)
    moved, rate = float((change != 0).float().mean()), study.run.training.learning_rate
    measured = Measurement(
        probe="weights-move",
        measured={
            "learning_rate": rate,
            "update_norm": float(change.norm()),
            "largest_change": float(change.abs().max()),
            "share_moved": moved,
        },
        bound=f"after one step at least {_MOVED:.0%} of the saved weights are other numbers than before",
        reason="AdamW moves every weight that has a gradient by about the learning rate; all of them, or "
        "with an adapter those of the adapted layers",
        passed=moved >= _MOVED,
    )
    return [measured]


def _weight_sync(study: _Study, first: Recording, second: Recording) -> Measurement | None:
    """Of the second step's rollouts; None where the update is lost in the sampler's own rounding."""
    new = load_model(study.base_model, "sdpa")
    new.load_state_dict(first.weights)
    old = load_model(study.base_model, "sdpa")
    later = second.rollouts[len(first.rollouts) :]
    noise = _gap(study, old, first.rollouts)
    to_new, to_old = _gap(study, new, later), _gap(study, old, later)
    if max(to_new, to_old) < 2 * noise:
        return None
    return Measurement(
        probe="weight-sync",
        measured={
            "gap_to_new_weights": to_new,
            "gap_to_old_weights": to_old,
            "gap_before_any_update": noise,
        },
        bound="the second step's tokens were sampled with log-probabilities nearer to those of the "
        "weights that the first step saved than to the base model's",
        reason="a sampler that follows the trainer differs from its weights by rounding, as it did before "
        "any update",
        passed=to_new < to_old,
    )


@torch.no_grad()
def _gap(study: _Study, model: Any, recorded: Sequence[Mapping[str, Any]]) -> float:
    """Mean absolute difference of the model's log-probabilities from the recorded ones, nats."""
    rollouts = [recorded_rollout(row, study.rows, study.trained_in, study.chat) for row in recorded]
    batch = build_batch(rollouts, Stages(), study.trained_in, study.chat)
    temperature = study.run.training.temperature
    logprobs = token_logprobs(model, batch.ids, batch.real, batch.sampled, temperature)
    return float((logprobs - batch.sampler)[batch.sampled].abs().mean())


def _prompts(subject: Subject) -> Measurement:
    environment, chat = subject.environment, subject.chat
    different = [
        r.segments[0].ids != chat.prompt(environment.messages(r.row), environment.tools)
        for r in subject.rollouts
    ]
    return Measurement(
        probe="train-eval-equality",
        measured={"share_of_prompts_that_differ": sum(different) / len(different)},
        bound="the same prompts as in evaluation, token by token",
        reason="held-out reward tells of training only if it is measured on the same task; scores are "
        "the reward audit's, and what was saved is what is evaluated",
        passed=not any(different),
    )
