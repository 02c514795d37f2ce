"""What other trainers write by themselves, as a record. A converter is a module in this folder, which is all it needs.

It has FILES, a pattern of the files that it knows a folder by, and `convert`, which returns their record without a model. The
folder has settings.json, the record's settings, and may have model/, with the weights of the first step, and tokenizer/, as
save_pretrained writes them.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from rlvr_debug.blocks import checked
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.recorders.keeping import stacked
from rlvr_debug.recorders.verl.batches import Step
from rlvr_debug.recorders.verl.batches import generation_of as in_groups
from rlvr_debug.replay.architecture import no_model
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.settings import Settings
from rlvr_debug.replay.store import finished, read_record, read_tensors

_STEPS = 3  # the first ones are read
_SURE = -1e-4  # a token that the sampler wrote with log-probability 0 has about that in training


def reader_of(folder: Path) -> Callable[[Path], Record]:
    """Return what reads the folder: a converter, where it is no record and one knows its files."""
    if not (folder / "record.json").exists():
        for info in pkgutil.iter_modules(__path__):
            converter = importlib.import_module(f"{__name__}.{info.name}")
            if any(folder.glob(converter.FILES)):
                return partial(_converted, converter.convert)
    return read_record


def _converted(convert: Callable[[Path, Settings], Record], folder: Path) -> Record:
    """Return the record of a folder. The weights of later steps than the first are not known."""
    path = folder / "settings.json"
    if not path.exists():
        raise InputError(f"{path}: no such file, expected a record's settings (docs/record.md)")
    asked = read_json(path)
    record = convert(folder, checked(Settings, asked, path))
    files = sorted((folder / "model").glob("*.safetensors"))
    weights = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
    rewarded = any(generation.rewards is not None for generation in record.generations)
    for key, beside, known in (
        ("precision", "weights", weights),
        ("scale_rewards", "rewards", rewarded),
    ):
        if known and key not in asked:
            raise InputError(f"{path}: key '{key}' is missing, expected beside {beside}")
    if weights:
        record.weights, record.trainable = [weights], tuple(weights)
        # what training begins with is its reference
        record.reference = None if record.settings.first_step else weights
    for generation in record.generations[1:]:
        generation.weights = None
        generation.calls = [replace(call, weights=None) for call in generation.calls]
    return finished(record, folder, folder)


def steps_of(folder: Path) -> list[tuple[int, Path]]:
    """Return the first steps' folders, each with its number."""
    known = ((path.name.removeprefix("step_"), path) for path in folder.glob("step_*"))
    return sorted((int(number), path) for number, path in known if number.isdecimal())[:_STEPS]


# --- sequences that are trained on -> a generation


@dataclass(frozen=True)
class Trained:
    """A sequence that is trained on, [T]. counted: by the loss. sampler, policy: log-probabilities; the sampler's are 0 where it wrote nothing.

    columns: more of its numbers, by verl's names. row: of the data. group: the name of its group.
    """

    ids: Tensor
    counted: Tensor
    sampler: Tensor
    policy: Tensor
    columns: Mapping[str, Tensor]
    row: dict[str, object]
    group: str
    reward: float = math.nan


def record_of(
    trainer: str, settings: Settings, steps: Iterable[Sequence[Trained]], unseen: Mapping[str, str]
) -> Record:
    """Return the record of what steps are trained on. unseen: by segment, why it cannot be looked at."""
    record = Record(trainer, settings, None, None, no_model)
    told = True
    for rows in steps:
        told &= _is_told(rows)
        record.generations.append(generation_of(rows, settings, record.notes))
    if not told:
        unseen = {
            **unseen,
            "loss mask": "without the sampler's log-probabilities nothing else says who wrote a token",
        }
    record.unseen = unseen
    return record


def _is_told(rows: Iterable[Trained]) -> bool:
    """Return whether the sampler's log-probabilities are known, which tell what it wrote."""
    return all(bool(row.sampler.any()) for row in rows)


def generation_of(rows: Sequence[Trained], settings: Settings, notes: list[str]) -> Generation:
    """Return the generation; the first token that was written, or that the loss counts, ends a prompt."""
    told = _is_told(rows)
    wrote = [_wrote(row, settings) if told else row.counted for row in rows]
    either = (row.counted | own for row, own in zip(rows, wrote, strict=True))
    cuts = [int(own.int().argmax()) if own.any() else len(own) for own in either]

    def padded(name: str, values: Iterable[Tensor]) -> Tensor:
        pairs = zip(values, cuts, strict=True)
        before = name == "prompts"
        return stacked([each[None, :n] if before else each[None, n:] for each, n in pairs], name)

    ids, real = [row.ids for row in rows], [torch.ones_like(row.ids) for row in rows]
    rewards = torch.tensor([row.reward for row in rows])[:, None]
    common = {name: padded(name, ids) for name in ("prompts", "responses")}
    common["attention_mask"] = torch.cat([padded(name, real) for name in common], 1)
    sampled = {**common, "response_mask": padded("response_mask", wrote)}
    if told:
        sampled["rollout_log_probs"] = padded("rollout_log_probs", [row.sampler for row in rows])
    trained = {
        **common,
        "response_mask": padded("response_mask", [row.counted for row in rows]),
        "token_level_scores": rewards,
        "token_level_rewards": rewards,
        **{name: padded(name, [row.columns[name] for row in rows]) for name in rows[0].columns},
    }
    groups, data = [row.group for row in rows], [row.row for row in rows]
    step = Step(trained, sampled, groups, data, [True] * len(rows), notes=notes)
    found = in_groups(step, settings.group_size)
    return replace(
        found,
        rows=[*filter(None, found.rows)],
        reward_calls=[],
        rewards=None if rewards.isnan().all() else found.rewards,
    )


def _wrote(row: Trained, settings: Settings) -> Tensor:
    """Return which tokens the sampler wrote. A reply that does not count at all was read: another sequence is trained on it."""
    asked = settings.sampling
    whole = asked.top_p == 1 and not asked.top_k and not asked.min_p
    sure = row.policy > (
        _SURE if whole else -math.inf
    )  # a token that is alone in a cut distribution has 0
    found = (row.sampler != 0) | (row.counted & sure)
    own = found.tolist()
    for is_reply, run in groupby(range(len(own)), own.__getitem__):
        places = [*run]
        found[places] &= is_reply and bool(row.counted[places].any())
    return found
