"""Writes what the loss of verl's workers reads, the gradient that reaches it, and what the optimizer does: files for each worker and step.

The driver makes the folder for an update and takes the files after it. Where there is none, nothing is written.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.recorders.verl.steps import Kept, StepWatch, safely, save, saved

_TOKENS = ("prompts", "responses", "attention_mask", "response_mask")
_READ = (*_TOKENS, "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")
_LOSS = "loss"
Micro = dict[str, Tensor]  # what one backward pass was of, by verl's names


@dataclass(frozen=True)
class Told:
    """What is asked of the recorder. rewards: whether these are called again; goes_on: whether training then goes on."""

    folder: str
    steps: int = 2
    rewards: bool = True
    goes_on: bool = False

    @property
    def workers(self) -> Path:
        """Return the folder of what workers write of an update."""
        return Path(f"{self.folder}.workers")


def watch_engine(kind: Any, told: Told) -> None:
    """Have a class of engines write what its loss reads and its optimizer does; what has scaled gradients does not."""
    train = kind.train_batch

    @functools.wraps(train)
    def trained(engine: Any, data: Any, loss_function: Any) -> Any:
        folder, kept = told.workers, list[Micro]()
        if not folder.is_dir() or getattr(engine, "scaler", None) is not None:
            return train(engine, data, loss_function)
        size, step = engine.get_data_parallel_size(), StepWatch(engine)
        with step.watching():
            found = train(engine, data, functools.partial(_watched, loss_function, kept, size))
        if kept:  # nothing is kept of a critic
            step.write(folder)
        if kept and all(kept) and engine.is_mp_src_rank_with_outputs():
            safely(kept, _LOSS, write, kept, folder, engine.get_data_parallel_rank(), size)
        return found

    kind.train_batch = trained


def _watched(inner: Any, kept: list[Micro], size: int, **named: Any) -> Any:
    """Call the loss, and keep what it read and what comes back to it; of a critic's nothing."""
    output, data = named.get("model_output", {}), named.get("data", {})
    if "log_probs" in output and "old_log_probs" in data:
        safely(kept, _LOSS, _hold, kept, output, data, size)
    return inner(**named)


def _hold(kept: list[Micro], output: Mapping[str, Any], data: Any, size: int) -> None:
    """Keep what the loss reads. Backward adds gradients; workers' are averaged, so that each has a share of them."""
    from verl.workers.utils.padding import no_padding_2_padding

    found = {name: data[name].detach() for name in _READ if name in data}
    ragged = found["prompts"].is_nested
    found = padded(found) if ragged else {name: held.clone() for name, held in found.items()}
    width = found["responses"].shape[1]

    def keep(name: str, values: Tensor) -> None:
        found[name] = no_padding_2_padding(values.detach(), data)[:, :width].clone()

    for name in {"log_probs", "entropy"} & output.keys():
        keep(name, output[name])
        if output[name].requires_grad:
            share = functools.partial(lambda name, grad: keep(f"{name}.grad", grad / size), name)
            output[name].register_hook(functools.partial(safely, kept, _LOSS, share))
    kept.append(found)


def padded(data: Mapping[str, Any]) -> Micro:
    """Return rows of any length as tensors, prompts on the right and all else on the left, with their attention mask."""
    rows = {name: [*held.unbind()] for name, held in data.items()}
    real = {name: [torch.ones_like(row) for row in rows[name]] for name in ("prompts", "responses")}

    def pad(name: str, values: list[Tensor]) -> Tensor:
        return pad_sequence(values, True, padding_side="left" if name == "prompts" else "right")

    mask = torch.cat([pad(name, values) for name, values in real.items()], 1)
    return {name: pad(name, values) for name, values in rows.items()} | {"attention_mask": mask}


# --- the files


def write(kept: list[Micro], folder: Path, rank: int, size: int) -> None:
    """Write what one of several workers did in its next optimizer step."""
    named = {f"{n}/{name}": held for n, each in enumerate(kept) for name, held in each.items()}
    save(Kept(named, {}), folder, "loss", rank, size)


def written(folder: Path) -> list[list[Micro]]:
    """Return by optimizer step what all workers wrote, nothing where one of them wrote none."""
    return [
        [micro for each in ranks for micro in _micros(each.tensors)]
        for ranks in saved(folder, "loss")
    ]


def _micros(tensors: Mapping[str, Tensor]) -> list[Micro]:
    found: dict[int, Micro] = {}
    for name, held in tensors.items():
        place, _, own = name.partition("/")
        found.setdefault(int(place), {})[own] = held
    return [found[place] for place in sorted(found)]
