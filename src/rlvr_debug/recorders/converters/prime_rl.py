"""prime-rl's token exports (0.8.0, trainer/rl/token_export.py, schema 1), which `trainer.enable_token_export` writes in a run's folder."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from rlvr_debug.blocks import Flag, checked
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.recorders.converters import Trained, generation_of, record_of, steps_of
from rlvr_debug.replay.record import Forward, MicroBatch, Record, Update
from rlvr_debug.replay.settings import Index, Number, Part, Settings

FILES = "token_exports/step_*/rank_*.jsonl"
_SCHEMA = 1
_ONLY = "only what is trained on is exported"
_UNSEEN = {
    "tokens": _ONLY,
    "micro-batches": _ONLY,
    "importance weights": "prime-rl's loss, which they are a part of, has no reference",
    "loss": "prime-rl's loss has no reference",
    "gradient": "prime-rl's loss has no reference",
    "weights between steps": "no weights are exported",
    "effect": "no weights are exported",
}
_NUMBERS = ("inference_logprobs", "trainer_logprobs", "advantages")


@dataclass(frozen=True)
class _Line(Part):
    """What is read of a line: a sequence that the trainer was given, and log-probabilities of each of its tokens given those before."""

    schema_version: Index
    token_ids: list[Index]
    position_ids: list[Index]
    loss_mask: list[Flag]
    inference_logprobs: list[Number | None]
    trainer_logprobs: list[Number | None]
    advantages: list[Number | None]


def convert(folder: Path, settings: Settings) -> Record:
    """Return the exported steps; the first has what the policy read for it, too. Groups are not known."""
    folders = steps_of(folder / "token_exports")
    # a step without the mark is being written
    whole = ((number, path) for number, path in folders if (path / "STABLE").exists())
    steps = [(number, lines) for number, path in whole if (lines := [*_lines(path)])]
    if not steps:
        raise InputError(f"{folder / 'token_exports'}: found no step with STABLE, expected one")
    settings = replace(settings, group_size=1, first_step=max(steps[0][0] - 1, 0))
    unseen = dict(_UNSEEN)
    if settings.first_step:
        unseen["sampler"] = "its weights, which may be those of an earlier step, are not known"
    rows = ([_trained(line) for line in lines] for _, lines in steps)
    record = record_of("prime-rl", settings, rows, unseen)
    micros = [_micro_batch(row, line, settings) for row, line in enumerate(steps[0][1])]
    record.updates = [Update(micros)]
    return record


def _lines(folder: Path) -> Iterator[_Line]:
    """Yield the sequences of a step, rank by rank. Raise InputError, which names file and line, at the first that does not fit."""
    for path in sorted(folder.glob("rank_*.jsonl"), key=lambda each: (len(each.name), each.name)):
        for number, told in read_jsonl(path):
            place = f"{path}:{number}"
            names = {field.name for field in fields(_Line)} & told.keys()
            line = checked(_Line, {name: told[name] for name in names}, place)
            if line.schema_version != _SCHEMA:
                said = f"schema_version is {line.schema_version}, expected {_SCHEMA}"
                raise InputError(f"{place}: {said}")
            _check(line, place)
            yield line


def _check(line: _Line, place: str) -> None:
    count = len(line.token_ids)
    for name in ("position_ids", "loss_mask", *_NUMBERS):
        own = len(getattr(line, name))
        if own != count:
            said = f"is of length {own}, expected {count}, as token_ids"
            raise InputError(f"{place}: key '{name}' {said}")
    if line.loss_mask[:1] != [False]:
        said = "is true, expected false: nothing stands before the first token"
        raise InputError(f"{place}: key 'loss_mask.0' {said}")
    for name in _NUMBERS:
        values = enumerate(zip(getattr(line, name), line.loss_mask, strict=True))
        for at, (value, counted) in values:
            if value is None and counted:
                said = "is null, expected a number where the loss counts"
                raise InputError(f"{place}: key '{name}.{at}' {said}")


def _trained(line: _Line) -> Trained:
    sampler, policy, advantages = (
        torch.tensor([0.0 if x is None else x for x in getattr(line, name)]) for name in _NUMBERS
    )
    ids, counted = torch.tensor(line.token_ids), torch.tensor(line.loss_mask)
    return Trained(ids, counted, sampler, policy, {"advantages": advantages}, {}, "")


def _micro_batch(row: int, line: _Line, settings: Settings) -> MicroBatch:
    """Return a sequence as a micro-batch of its own: what it is packed with is not read."""
    own = _trained(line)
    given = generation_of([own], settings, []).batch
    assert given is not None
    return MicroBatch(
        0,
        replace(given, rows=torch.tensor([row])),
        forward=Forward(own.ids[None], position_ids=torch.tensor([line.position_ids])),
        logprobs=own.policy[None, given.prompt_ids.shape[1] :],
    )
