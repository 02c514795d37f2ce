"""Writes what the loss of verl's workers reads, and the gradient that reaches it: a file for each worker and optimizer step.

The driver makes the folder for an update and takes the files after it. Where there is none, nothing is written.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_TOKENS = ("prompts", "responses", "attention_mask", "response_mask")
_READ = (*_TOKENS, "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")
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
    """Have a class of engines write what its loss reads; what has scaled gradients does not."""
    train = kind.train_batch

    @functools.wraps(train)
    def trained(engine: Any, data: Any, loss_function: Any) -> Any:
        folder, kept = told.workers, list[Micro]()
        if not folder.is_dir() or getattr(engine, "scaler", None) is not None:
            return train(engine, data, loss_function)
        size = engine.get_data_parallel_size()
        found = train(engine, data, functools.partial(_watched, loss_function, kept, size))
        if kept and all(kept) and engine.is_mp_src_rank_with_outputs():
            _safely(kept, write, kept, folder, engine.get_data_parallel_rank(), size)
        return found

    kind.train_batch = trained


def _watched(inner: Any, kept: list[Micro], size: int, **named: Any) -> Any:
    """Call the loss, and keep what it read and what comes back to it; of a critic's nothing."""
    output, data = named.get("model_output", {}), named.get("data", {})
    if "log_probs" in output and "old_log_probs" in data:
        _safely(kept, _hold, kept, output, data, size)
    return inner(**named)


def _safely(kept: list[Micro], function: Callable[..., None], *given: Any) -> None:
    """Call what records. Where it fails, say so, and keep something empty, by which nothing of this step is written."""
    try:
        function(*given)
    except Exception as error:  # the training goes on
        print(f"rlvr-debug: a worker's loss could not be recorded: {error!r}", flush=True)
        kept.append({})


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
            output[name].register_hook(functools.partial(_safely, kept, share))
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
    from safetensors.torch import save_file

    number = len([*folder.glob(f"*-{rank}-{size}.safetensors")])
    named = {f"{n}/{name}": held for n, each in enumerate(kept) for name, held in each.items()}
    tensors = {name: held.cpu().contiguous() for name, held in named.items()}
    save_file(tensors, folder / f"{number}-{rank}-{size}.safetensors")


def written(folder: Path) -> list[list[Micro]]:
    """Return by optimizer step what all workers wrote, nothing where one of them wrote none."""
    from safetensors.torch import load_file

    steps: dict[int, dict[int, list[Micro]]] = {}
    size = 1
    for path in folder.glob("*.safetensors"):
        number, rank, size = map(int, path.stem.split("-"))
        micros: dict[int, Micro] = {}
        for name, held in load_file(path).items():
            place, _, own = name.partition("/")
            micros.setdefault(int(place), {})[own] = held
        steps.setdefault(number, {})[rank] = [micros[place] for place in sorted(micros)]
    whole = all(len(ranks) == size for ranks in steps.values())
    ordered = [steps[number] for number in sorted(steps) if whole]
    return [[each for rank in sorted(ranks) for each in ranks[rank]] for ranks in ordered]
