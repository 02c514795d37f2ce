"""Probes of a program: it runs the case for one step and for two, and what it recorded is measured.

What it sampled, what it was sampled with, what it trained on and the weights it saved are held against the
base model and our environment. Probes that ask for more than these files are not run.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.metrics.settings import ALL_ROLLOUTS
from rlvr_debug.models.base_model import load_model, one_thread
from rlvr_debug.probes import Measurement, Subject
from rlvr_debug.probes.rewards import group_integrity, reward_audit
from rlvr_debug.probes.sampler import sampler_gap, sampler_ratio
from rlvr_debug.probes.sequences import context_sensitivity, limits, sequence_diff, token_roles
from rlvr_debug.sampling.alignment import carried
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.trainers.base import Job
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.recording import Recording, record

__all__ = ["probe_program"]

_MOVED = 0.01


def probe_program(job: Job, program: Program) -> list[Measurement]:
    """Run the program twice, in a folder beside job.out, and measure.

    Raises InputError as `record` does, and for rollouts of step 1 that are not whole groups.
    """
    one_thread()
    run, place = job.run, job.out.with_suffix("")
    found = []
    for steps in (1, 2):
        # an update at the first step, whatever the warm-up
        training = replace(run.training, steps=steps, save_steps=0, warmup_steps=0)
        told = replace(
            job,
            run=replace(run, training=training),
            out=place / str(steps),
            diagnostics=ALL_ROLLOUTS,
        )
        found.append(record(told, program, "probe of"))
    first, second = found
    if len(first.lines) % run.training.group_size:
        raise InputError(
            f"run {run.environment}/{run.arm}: {len(first.lines)} rollouts were recorded of step 1, expected a "
            f"multiple of group_size {run.training.group_size}"
        )
    measurements = _probes(job, first, second)
    shutil.rmtree(place)
    return measurements


def _probes(job: Job, first: Recording, second: Recording) -> list[Measurement]:
    """Return measurements in the order of a training step.

    first, second: of one step, in whole groups, and of two, with the same seed.
    """
    lines = first.lines
    if not lines:
        return _weights_move(job, first)
    subject = _subject(job, first)
    found = [limits(subject)]
    own = all("trained" in line for line in lines)
    if own:
        found += [sequence_diff(subject), token_roles(subject), context_sensitivity(subject)]
    elif all("loss" in line for line in lines):
        found.append(token_roles(subject))
    found += [reward_audit(subject), group_integrity(subject)]
    known = all("logprobs" in line for line in [*lines, *second.lines])
    if known:
        found.append(sampler_ratio(subject))
    found += _weights_move(job, first)
    same = second.lines[: len(lines)] == lines
    if known and same and (measured := _weight_sync(job, first, second)):
        found.append(measured)
    return [*found, _prompts(subject)]


def _subject(job: Job, recording: Recording) -> Subject:
    lines, limit = recording.lines, recording.environment.max_new_tokens
    stages = replace(Stages(), max_new_tokens=lambda _: limit)
    if all("loss" in line for line in lines):
        masks = [torch.tensor(line["loss"]).bool() for line in lines]
        # the longest of a batch's sequences is as wide as the batch
        stages = replace(stages, loss_mask=lambda sampled, real: pad_sequence(masks, True))
    if all("advantage" in line for line in lines):
        gains = torch.tensor([line["advantage"] for line in lines])
        stages = replace(
            stages, advantages=lambda rewards, scaling, epsilon: gains.view_as(rewards)
        )
    return Subject(
        Policy(load_model(job.base_model, "sdpa"), None, None),
        base_sampler(job.base_model, recording.chat),
        stages,
        job.run.training,
        build_environment(job.run.environment, job.environment),
        recording.chat,
        recording.rollouts,
        torch.tensor([float(line["reward"]) for line in lines]),
        partial(_own_batch, lines) if all("trained" in line for line in lines) else build_batch,
    )


def _own_batch(lines: list[dict[str, Any]], *_: Any, **__: Any) -> Batch:
    """Return the sequences that a program trains on, as it recorded them, whatever the batch is asked to be made of.

    What the model wrote in them is carried over from what was sampled by their alignment.
    """
    found = [line["trained"] for line in lines]
    places = [carried(line["ids"], own["ids"]) for line, own in zip(lines, found, strict=True)]
    sampled = [
        [at is not None and bool(line["sampled"][at]) for at in row]
        for line, row in zip(lines, places, strict=True)
    ]

    def padded(rows: list[list[Any]], kind: torch.dtype) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(kind)

    ids = padded([own["ids"] for own in found], torch.long)
    return Batch(
        ids=ids,
        sampled=padded(sampled, torch.bool),
        sampler=torch.zeros(ids.shape),
        real=padded([[1] * len(own["ids"]) for own in found], torch.bool),
        loss=padded([own["loss"] for own in found], torch.bool),
        attention=padded([own["attention"] for own in found], torch.bool),
    )


def _weights_move(job: Job, first: Recording) -> list[Measurement]:
    """Measure nothing where there was no gradient to move by."""
    if not first.metrics[0]["grad_norm"]:
        return []
    before = load_model(job.base_model, "sdpa").state_dict()
    changes = [(first.weights[name] - tensor).flatten() for name, tensor in before.items()]
    change = torch.cat(changes)
    moved, rate = float((change != 0).float().mean()), job.run.training.learning_rate
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


def _weight_sync(job: Job, first: Recording, second: Recording) -> Measurement | None:
    """Measure the second step's rollouts; return None where the update is lost in the sampler's own rounding."""
    new = load_model(job.base_model, "sdpa")
    new.load_state_dict(first.weights)
    old = load_model(job.base_model, "sdpa")
    later = second.rollouts[len(first.rollouts) :]

    def gap(model: Any, rollouts: list[Rollout]) -> float:
        batch = build_batch(rollouts, Stages(), first.environment, first.chat)
        return sampler_gap(model, batch, job.run.training.temperature)

    noise, to_new, to_old = gap(old, first.rollouts), gap(new, later), gap(old, later)
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
