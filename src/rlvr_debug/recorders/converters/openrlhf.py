"""OpenRLHF's Experience (0.11.2, trainer/ppo_utils/experience.py), which it keeps in memory: `save` writes one, and is all that training calls."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from safetensors.torch import save_file
from torch import Tensor

from rlvr_debug.blocks import Text, checked
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.recorders.converters import Trained, record_of, steps_of
from rlvr_debug.replay.architecture import read_tokenizer
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.settings import Index, Part, Settings
from rlvr_debug.replay.store import read_tensors

FILES = "step_*/experience_*.json"
_WHOLE = ("sequences", "attention_mask", "action_mask")
# of the second token and those behind it, by verl's names
_TOKENS = {
    "advantages": "advantages",
    "action_log_probs": "old_log_probs",
    "base_action_log_probs": "ref_log_prob",
    "rollout_log_probs": "",
}
_NEEDED = (*_WHOLE, "action_log_probs", "advantages", "rewards")
_ONLY = "only what is trained on is in an Experience"


def save(experience: Any, folder: str | Path) -> None:
    """Write a step: an Experience, or the list that make_experience_batch returns."""
    parts = experience if isinstance(experience, list) else [experience]
    step = Path(folder) / f"step_{len([*Path(folder).glob('step_*')]) + 1}"
    step.mkdir(parents=True)
    for number, part in enumerate(parts):
        found = {name: getattr(part, name, None) for name in (*_WHOLE, *_TOKENS, "rewards")}
        tensors = {name: x.detach().cpu().clone() for name, x in found.items() if x is not None}
        save_file(tensors, step / f"experience_{number}.safetensors")
        told = json.dumps({"index": part.index, "prompts": part.prompts})
        (step / f"experience_{number}.json").write_text(told, encoding="utf-8")


@dataclass(frozen=True)
class _Told(Part):
    """What is no tensor. index: of each row, its place before batches were made; None where these were shuffled already."""

    prompts: Annotated[list[Text], MinLen(1)]
    index: list[Index] | None = None


def convert(folder: Path, settings: Settings) -> Record:
    """Return the steps that were saved: of each, how its rollouts were made."""
    unseen = {"tokens": _ONLY}
    if settings.kl_beta and settings.kl_place == "reward":
        unseen["advantages"] = "the KL of each token is in them, and in no Experience"
    tokenizer = read_tokenizer(folder / "tokenizer")
    if tokenizer is not None and tokenizer("a") != tokenizer("a", add_special_tokens=False):
        unseen["prompt"] = "OpenRLHF adds no special tokens to a prompt, and this tokenizer does"
    steps = (
        [row for file in parts_of(path) for row in _rows(file, settings)]
        for _, path in steps_of(folder)
    )
    return record_of("OpenRLHF", settings, steps, unseen)


def parts_of(step: Path) -> list[Path]:
    """Return the files of a step in the order that `save` wrote them."""
    return sorted(step.glob("experience_*.json"), key=lambda path: (len(path.name), path.name))


def _rows(path: Path, settings: Settings) -> Iterator[Trained]:
    """Yield the rows of an Experience, in whatever order."""
    told = checked(_Told, read_json(path), path)
    if told.index is not None and len(told.index) != len(told.prompts):
        said = f"of length {len(told.index)}, expected {len(told.prompts)}, as prompts"
        raise InputError(f"{path}: key 'index' is {said}")
    tensors = _tensors(path.with_suffix(".safetensors"), len(told.prompts))
    for row, prompt in enumerate(told.prompts):
        real = tensors["attention_mask"][row].bool()
        # what is of an action stands at the token before it
        own = {
            name: torch.cat([tensors[name].new_zeros(1), tensors[name][row]])[real]
            for name in ("action_mask", *_TOKENS)
            if name in tensors
        }
        group = prompt if told.index is None else str(told.index[row] // settings.group_size)
        policy = own["action_log_probs"]
        yield Trained(
            tensors["sequences"][row][real],
            own["action_mask"].bool(),
            own.get("rollout_log_probs", torch.zeros_like(policy)),
            policy,
            {ours: own[name] for name, ours in _TOKENS.items() if ours and name in own},
            {"prompt": prompt},
            group,
            float(tensors["rewards"][row]),
        )


def _tensors(path: Path, rows: int) -> dict[str, Tensor]:
    """Return the tensors of an Experience of so many rows. Raise InputError, one line, at the first that does not fit."""
    found = read_tensors(path)
    for name in _NEEDED:
        if name not in found:
            raise InputError(f"{path}: key '{name}' is missing")
    width = found["sequences"].shape[-1] if found["sequences"].dim() else 1
    for name in (name for name in (*_WHOLE, *_TOKENS, "rewards") if name in found):
        tensor = found[name]
        shape = [rows, width] if name in _WHOLE[:2] else [rows, width - 1]
        shape = [rows] if name == "rewards" else shape
        if [*tensor.shape] != shape:
            said = f"is of shape {[*tensor.shape]}, expected {shape}"
            raise InputError(f"{path}: key '{name}' {said}")
        if tensor.is_floating_point() == (name in _WHOLE):
            kind = "an integer" if name in _WHOLE else "a floating point"
            raise InputError(
                f"{path}: key '{name}' is of type {tensor.dtype}, expected {kind} type"
            )
        if name in _TOKENS and tensor[found["action_mask"].bool()].isnan().any():
            raise InputError(
                f"{path}: key '{name}' is NaN somewhere, expected numbers where action_mask counts"
            )
    return found
