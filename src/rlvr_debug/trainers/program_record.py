"""The first steps of a program as a record: the one that it wrote itself, or what its files hold.

Axes: B rollouts of a step, T tokens of a trained sequence, P of a prompt, C of a completion.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.errors import InputError
from rlvr_debug.metrics.settings import ALL_ROLLOUTS
from rlvr_debug.models.base_model import load_model, one_thread
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Forward,
    Generation,
    MicroBatch,
    Record,
    RewardCall,
    Update,
    Weights,
)
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.store import read_record
from rlvr_debug.sampling.alignment import carried
from rlvr_debug.trainers.asked import settings_of
from rlvr_debug.trainers.base import Job, Run
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.protocol import RECORDED
from rlvr_debug.trainers.recording import Recording, record

__all__ = ["record_of", "record_program"]

_NOT_RECORDED = "the program did not record it"
Line = dict[str, Any]


def record_program(job: Job, program: Program, steps: int = 2) -> Record:
    """Run the case for so many steps, in a folder beside job.out, and return their record.

    It is the one that the program wrote; where it wrote none, the case is run for one step too, and the record is what
    its files hold of two. Raise InputError as `record` does, for a folder that is no record, and for rollouts that are
    not whole groups.
    """
    one_thread()
    place = job.out.with_suffix("")
    try:
        several = _ran(job, program, steps)
        own = place / str(steps) / "attempt" / "out" / RECORDED
        if own.is_dir():
            return _without_files(read_record(own))
        first = several if steps == 1 else _ran(job, program, 1)
        return record_of(job.run, load_model(job.base_model, "sdpa"), first, several)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _ran(job: Job, program: Program, steps: int) -> Recording:
    # an update at the first step, whatever the warm-up
    training = replace(job.run.training, steps=steps, save_steps=0, warmup_steps=0)
    run, out = replace(job.run, training=training), job.out.with_suffix("") / str(steps)
    told = replace(job, run=run, out=out, diagnostics=ALL_ROLLOUTS)
    return record(told, program, "check of", recorded=True)


def _without_files(record: Record) -> Record:
    """Return the record, whose module is no more built from its folder."""
    try:
        module = record.build()
    except NotSeen:  # it has no model
        return record
    return replace(record, build=partial(copy.deepcopy, module))


def record_of(run: Run, model: Any, first: Recording, several: Recording) -> Record:
    """Return what the files of a program hold of its first two steps.

    model: the base model, of transformers. first, several: of one step, and of more with the same seed. The second step
    is in the record where both runs sampled the same in the first one: its weights are then those that `first` saved.
    Raise InputError for rollouts that are not whole groups.
    """
    weights = _states(model, first)
    steps = [_Step(first, 1, 0)]
    if several.lines[: len(first.lines)] == first.lines:
        steps.append(_Step(several, 2, len(weights) - 1))
    steps = [step for step in steps if step.lines]
    for step in steps:
        if len(step.lines) % run.training.group_size:
            raise InputError(
                f"run {run.environment}/{run.arm}: {len(step.lines)} rollouts were recorded of a step, "
                f"expected a multiple of group_size {run.training.group_size}"
            )
    found = Record(
        trainer=run.trainer,
        settings=settings_of(run.training, first.environment, first.chat),
        tokenizer=first.chat.tokenizer,
        tools=list(first.environment.tools) or None,
        build=partial(copy.deepcopy, model),
        weights=weights,
        trainable=tuple(weights[0]),
        generations=[_generation(step) for step in steps],
        updates=[Update(after=len(weights) - 1)],
        unseen=_unseen([line for step in steps for line in step.lines]),
    )
    if not first.metrics[0]["grad_norm"]:
        found.unseen = {**found.unseen, "effect": "the first step has no gradient"}
    micros = [_micro_batch(step, number) for number, step in enumerate(steps)]
    found.updates[0].micro_batches = [micro for micro in micros[:1] if micro is not None]
    found.updates += [Update([micro], before=micro.weights) for micro in micros[1:] if micro]
    return found


def _states(model: Any, first: Recording) -> list[Weights]:
    """Return the base model's weights, and those after the first step, where these are others."""
    base = {name: tensor.detach() for name, tensor in model.named_parameters()}
    after = {name: first.weights[name] for name in base}
    return [base] if all(torch.equal(after[name], base[name]) for name in base) else [base, after]


def _unseen(lines: Sequence[Line]) -> dict[str, str]:
    """Return the segments that these lines of rollouts.jsonl say nothing of, each with the reason."""
    own = all("trained" in line for line in lines)
    seen = {
        "groups": True,
        "prompt": True,
        "sampler": all("logprobs" in line for line in lines),
        "tokens": own,
        "loss mask": own or all("loss" in line for line in lines),
        "rewards": True,
        "advantages": all("advantage" in line for line in lines),
        "model inputs": own,
        "effect": True,
    }
    return {
        segment.name: _NOT_RECORDED for segment in SEGMENTS if not seen.get(segment.name, False)
    }


class _Step:
    """The lines of one step and their rollouts, which our environment scored. held: number of the weights of then."""

    def __init__(self, recording: Recording, number: int, held: int) -> None:
        pairs = zip(recording.lines, recording.rollouts, strict=True)
        own = [(line, rollout) for line, rollout in pairs if line["step"] == number]
        self.lines, self.rollouts = [line for line, _ in own], [rollout for _, rollout in own]
        self.environment, self.held = recording.environment, held
        self.pad = recording.chat.tokenizer.pad_token_id or 0

    def column(self, name: str) -> list[Any]:
        return [line.get(name) for line in self.lines]


def _generation(step: _Step) -> Generation:
    rewards = [float(reward) for reward in step.column("reward")]
    evaluated = [rollout.reward for rollout in step.rollouts]
    return Generation(
        rows=[
            {"prompt": step.environment.messages(rollout.row), "id": rollout.row.id}
            for rollout in step.rollouts
        ],
        weights=step.held,
        calls=_calls(step.lines, step.held),
        reward_calls=[RewardCall("score", 0, {}, rewards, evaluated=evaluated)],
        rewards=torch.tensor(rewards)[:, None],
        batch=_batch(step),
    )


def _micro_batch(step: _Step, generation: int) -> MicroBatch | None:
    """Return what the loss was given, and what the model read for it; None where that was not recorded."""
    batch, trained = _batch(step), _trained(step)
    if batch is None or trained is None or any("trained" not in line for line in step.lines):
        return None
    forward = Forward(
        _padded([each["ids"] for each in trained], step.pad),
        _padded([each["attention"] for each in trained]),
        places=_padded([list(range(each["start"], len(each["ids"]))) for each in trained]),
    )
    return MicroBatch(generation, batch, step.held, forward)


def _trained(step: _Step) -> list[dict[str, Any]] | None:
    """Return the trained sequences, with the place where each completion starts; None where none is known.

    Without one of its own, a trainer trains the sequence that was sampled.
    """
    found = []
    for line in step.lines:
        own = line.get("trained") or ({**line, "attention": None} if "loss" in line else None)
        if own is None:
            return None
        at = carried(line["ids"], own["ids"])
        wrote = [place is not None and bool(line["sampled"][place]) for place in at]
        start = wrote.index(True) if True in wrote else len(wrote)
        found.append({**own, "start": start})
    return found


def _batch(step: _Step) -> Batch | None:
    """Return what is trained on, as far as it was recorded; None where nothing was."""
    gains, trained = step.column("advantage"), _trained(step)
    advantages = torch.tensor(gains) if None not in gains else torch.zeros(0)
    if trained is None:
        none = torch.zeros(len(gains), 0, dtype=torch.long)
        return None if None in gains else Batch(none, none, none, none, none, advantages)
    starts = [each["start"] for each in trained]
    prompts = [each["ids"][:start] for each, start in zip(trained, starts, strict=True)]
    completions = [each["ids"][start:] for each, start in zip(trained, starts, strict=True)]
    masks = [each["loss"][start:] for each, start in zip(trained, starts, strict=True)]
    return Batch(
        prompt_ids=_padded([row[::-1] for row in prompts], step.pad).flip(1),
        prompt_mask=_padded([[1] * len(row) for row in prompts]).flip(1),
        completion_ids=_padded(completions, step.pad),
        completion_mask=_padded([[1] * len(row) for row in completions]),
        loss_mask=_padded(masks).bool(),
        advantages=advantages,
        rows=torch.arange(len(trained)),
    )


def _padded(rows: Sequence[Sequence[int]], padding: int = 0) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=padding)


def _calls(lines: Sequence[Line], weights: int) -> list[Call]:
    """Return the sampler's calls, one a turn."""
    found = []
    for number, each in enumerate(zip_longest(*map(_turns, lines))):
        turns = [(row, turn) for row, turn in enumerate(each) if turn is not None]
        found.append(
            Call(
                prompts=[prompt for _, (prompt, _, _) in turns],
                outputs=[output for _, (_, output, _) in turns],
                logprobs=[values for _, (_, _, values) in turns],
                weights=weights,
                rows=[row for row, _ in turns] if number else [],
            )
        )
        if not all("logprobs" in line for line in lines):
            found[-1] = replace(found[-1], logprobs=[])
    return found


def _turns(line: Line) -> list[tuple[list[int], list[int], list[float]]]:
    """Return what the sampler read, what it wrote, and with which log-probabilities, turn by turn."""
    values: Callable[[], float] = partial(next, iter(line.get("logprobs", ())), 0.0)
    found: list[tuple[list[int], list[int], list[float]]] = []
    read: list[int] = []
    for token, wrote in zip(line["ids"], line["sampled"], strict=True):
        if wrote and (not found or len(found[-1][0]) + len(found[-1][1]) != len(read)):
            found.append((list(read), [], []))
        if wrote:
            found[-1][1].append(token)
            found[-1][2].append(values())
        read.append(token)
    return found or [(read, [], [])]
