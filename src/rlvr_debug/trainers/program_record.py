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
    return record(told, program, "record of", recorded=True)


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
    base = {name: tensor.detach() for name, tensor in model.named_parameters()}
    after = {name: first.weights[name] for name in base}
    moved = any(not torch.equal(after[name], base[name]) for name in base)
    weights: list[Weights] = [base, after] if moved else [base]
    count = len(first.lines)
    parts = [(first, slice(0, count), 0)]
    if several.lines[:count] == first.lines and len(several.lines) > count:
        later = sum(line["step"] == 2 for line in several.lines)
        parts.append((several, slice(count, count + later), len(weights) - 1))
    lines = [line for recording, rows, _ in parts for line in recording.lines[rows]]
    for recording, rows, _ in parts:
        if len(recording.lines[rows]) % run.training.group_size:
            raise InputError(
                f"run {run.environment}/{run.arm}: {len(recording.lines[rows])} rollouts were recorded of a step, "
                f"expected a multiple of group_size {run.training.group_size}"
            )
    found = Record(
        trainer=run.trainer,
        settings=settings_of(run.training, first.environment, first.chat),
        tokenizer=first.chat.tokenizer,
        tools=list(first.environment.tools) or None,
        build=partial(copy.deepcopy, model),
        weights=weights,
        trainable=tuple(base),
        unseen=_unseen(lines),
    )
    for recording, rows, held in parts if lines else ():
        generation, micro = _step(_Step(recording, rows), held, len(found.generations))
        found.generations.append(generation)
        if micro is not None:
            found.updates.append(
                Update([micro], before=held, after=min(held + 1, len(weights) - 1))
            )
    if first.metrics[0]["grad_norm"] and not moved:
        found.notes.append("no saved weight is another number after the first step")
    return found


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
    }
    return {
        segment.name: _NOT_RECORDED
        for segment in SEGMENTS
        if not (lines and seen.get(segment.name, False))
    }


class _Step:
    """The lines of one step and their rollouts, which our environment scored."""

    def __init__(self, recording: Recording, rows: slice) -> None:
        self.recording = recording
        self.lines, self.rollouts = recording.lines[rows], recording.rollouts[rows]

    def column(self, name: str, otherwise: Any = None) -> list[Any]:
        return [line.get(name, otherwise) for line in self.lines]


def _step(step: _Step, held: int, number: int) -> tuple[Generation, MicroBatch | None]:
    """Return a step's generation, and what the loss was given, where that was recorded. held: number of the weights."""
    environment = step.recording.environment
    rewards = [float(reward) for reward in step.column("reward")]
    evaluated = [rollout.reward for rollout in step.rollouts]
    trained = _trained(step)
    generation = Generation(
        rows=[
            {"prompt": environment.messages(rollout.row), "id": rollout.row.id}
            for rollout in step.rollouts
        ],
        weights=held,
        calls=_calls(step.lines, held),
        reward_calls=[RewardCall("score", 0, {}, rewards, evaluated=evaluated)],
        rewards=torch.tensor(rewards)[:, None],
        batch=_batch(step, trained),
    )
    if generation.batch is None or "trained" not in step.lines[0]:
        return generation, None
    assert trained is not None
    forward = Forward(
        _padded([each["ids"] for each in trained], step.recording.chat.tokenizer.pad_token_id or 0),
        _padded([each["attention"] for each in trained]),
        places=_places(trained),
    )
    return generation, MicroBatch(number, generation.batch, held, forward)


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


def _batch(step: _Step, trained: list[dict[str, Any]] | None) -> Batch | None:
    gains = step.column("advantage")
    advantages = torch.tensor(gains) if None not in gains else torch.zeros(0)
    if trained is None:
        none = torch.zeros(len(gains), 0, dtype=torch.long)
        return None if None in gains else Batch(none, none, none, none, none, advantages)
    starts = [each["start"] for each in trained]
    pad = step.recording.chat.tokenizer.pad_token_id or 0
    prompts = [each["ids"][:start] for each, start in zip(trained, starts, strict=True)]
    completions = [each["ids"][start:] for each, start in zip(trained, starts, strict=True)]
    masks = [each["loss"][start:] for each, start in zip(trained, starts, strict=True)]
    return Batch(
        prompt_ids=_padded([row[::-1] for row in prompts], pad).flip(1),
        prompt_mask=_padded([[1] * len(row) for row in prompts]).flip(1),
        completion_ids=_padded(completions, pad),
        completion_mask=_padded([[1] * len(row) for row in completions]),
        loss_mask=_padded(masks).bool(),
        advantages=advantages,
        rows=torch.arange(len(trained)),
    )


def _places(trained: list[dict[str, Any]]) -> Tensor:
    """Return where each token of a completion stands in its sequence, [B, C], 0 for padding."""
    return _padded([list(range(each["start"], len(each["ids"]))) for each in trained])


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
    return found
