"""What recorders keep of a trainer at work: the policy's weights, gradients, and the optimizer's groups and state."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.recorders.pieces import is_cut, local
from rlvr_debug.recorders.pieces import kept as kept
from rlvr_debug.replay.record import ParameterGroup, Record
from rlvr_debug.replay.segments.gradient import norm, norm_as_summed


class Snapshots:
    """Keeps a policy's weights in its record, once for each state; the trained ones of a large model on disk.

    Of weights that are cut up these are the pieces here. What is on disk is there for as long as this is.
    """

    def __init__(self, model: Any, record: Record) -> None:
        self._model, self._record = model, record
        large = bool(record.elements)
        self._spill = tempfile.TemporaryDirectory(prefix="rlvr-debug-") if large else None
        self._numbers = itertools.count()
        # FSDP2 has whole parameters stand for the pieces during a forward pass, and these go on being what is trained
        self._cut = {n: p for n, p in model.named_parameters() if is_cut(p)}
        self._frozen = {
            name: local(parameter).cpu() if large else kept(local(parameter))
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }

    def take(self, *, new: bool = False) -> int:
        """Return the number of the weights of now. new: they count as others than those before, whatever they are.

        A piece may stay as it is where an update changes the others.
        """
        now = {
            n: local(self._cut.get(n, p))
            for n, p in self._model.named_parameters()
            if p.requires_grad
        }
        held, part = self._record.weights, self._record.part
        if (
            new
            or not held
            or any(not torch.equal(part(n, p).cpu(), part(n, held[-1][n])) for n, p in now.items())
        ):
            held.append({**self._frozen, **self._held(now)})
        return len(held) - 1

    def _held(self, now: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a copy of these weights, of a large model as it is read from disk when it is needed."""
        if self._spill is None:
            return {name: kept(parameter) for name, parameter in now.items()}
        file = Path(self._spill.name, f"weights-{next(self._numbers)}.safetensors")
        save_file({n: p.cpu().contiguous() for n, p in now.items()}, file)
        return dict(load_file(file))


def names_of(model: Any) -> dict[int, str]:
    """Return each parameter's name, by its id."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def gradients_of(model: Any, record: Record) -> dict[str, Tensor]:
    """Return the gradients of now, or the part of them that the record is of."""
    return parts_of(_gradients(model), record)


def parts_of(tensors: Mapping[str, Tensor], record: Record) -> dict[str, Tensor]:
    """Return a copy of tensors of parameters, or of the part of them that the record is of."""
    return {name: kept(record.part(name, tensor)) for name, tensor in tensors.items()}


def _gradients(model: Any) -> dict[str, Tensor]:
    return {n: local(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def whole_norms(model: Any) -> tuple[float, float]:
    """Return the norm of the gradients of now, and the same as their own precision sums it up."""
    found = _gradients(model)
    return norm(found), norm_as_summed(found)


def kind_of(optimizer: type) -> str:
    """Return the name of an optimizer's class; of one that is not torch's, with its package."""
    package = optimizer.__module__.partition(".")[0]
    torchs = optimizer.__module__.startswith("torch.optim")
    return optimizer.__name__ if torchs else f"{package}.{optimizer.__name__}"


def groups_of(
    groups: Iterable[Mapping[str, Any]],
    names: Mapping[int, str],
    asked: Mapping[str, Any] | None = None,
) -> list[ParameterGroup]:
    """Return how an optimizer's groups treat which parameters, of those that have a name.

    asked: options that hold whatever a group has; None: options are left out.
    """
    return [
        ParameterGroup(
            tuple(names[id(p)] for p in group["params"] if id(p) in names),
            float(group["lr"] or 0.0),
            float(group.get("weight_decay", 0.0)),
            float(group.get("momentum", 0.0)),
            {} if asked is None else _plain({**group, **asked}),
        )
        for group in groups
    ]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that a record has a place for."""
    numbers = {
        k: v.item() if isinstance(v, Tensor) and v.dim() == 0 else v for k, v in options.items()
    }
    return {
        name: value
        for name, value in numbers.items()
        if name != "params" and isinstance(value, None | bool | int | float | str | tuple)
    }


def state_of(
    optimizer: Optimizer, names: Mapping[int, str], record: Record
) -> dict[str, dict[str, Tensor]]:
    """Return by parameter what the optimizer holds of it, or the part of that that the record is of."""
    found: dict[str, dict[str, Tensor]] = {}
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name is not None:
            tensors = {
                key: torch.as_tensor(value)
                for key, value in state.items()
                if isinstance(value, Tensor | int | float)
            }
            found[name] = {
                key: kept(
                    record.part(name, local(value)) if value.shape == parameter.shape else value
                )
                for key, value in tensors.items()
            }
    return found
