"""What lies on one of several processes of a model that is cut up: weights by FSDP2 and ZeRO-3, and what ZeRO updates them by.

Nothing is exchanged for it, so that no process waits for another. A piece is flat; the pieces of a tensor, one after
the other by rank, are the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.replay.record import Record


@dataclass(frozen=True)
class Cut:
    """Shapes of what is cut up, by parameter: weights; gradients and the optimizer's state.

    elements: as a record of a large model has them, where each process has places in its own pieces. adapter: scalings
    of the reference model's adapter, None where the reference is no adapter's.
    """

    weights: Mapping[str, torch.Size] = field(default_factory=dict)
    moved: Mapping[str, torch.Size] = field(default_factory=dict)
    elements: Mapping[str, Tensor] = field(default_factory=dict)
    adapter: Mapping[str, Mapping[str, float]] | None = None


def kept(tensor: Tensor) -> Tensor:
    """Return a copy that training does not change."""
    return tensor.detach().cpu().clone()


def local(tensor: Any) -> Tensor:
    """Return the piece of a tensor that lies here; one that is not cut up as it is."""
    if hasattr(tensor, "to_local"):
        piece: Tensor = tensor.detach().to_local().reshape(-1)
        return piece
    found: Tensor = getattr(tensor, "ds_tensor", tensor)
    return found.detach()


def is_cut(parameter: Any) -> bool:
    """Return whether only a piece of the parameter lies here."""
    return hasattr(parameter, "placements") or hasattr(parameter, "ds_tensor")


def shape_of(parameter: Any) -> torch.Size:
    """Return the whole parameter's shape."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def cut_of(model: Any, zero: Zero | None, elements: Mapping[str, Tensor]) -> Cut:
    """Return what of a model is cut up. Raise InputError where its pieces do not follow one another by rank."""
    parameters = dict(model.named_parameters())
    weights = {}
    for name, parameter in parameters.items():
        layout = getattr(parameter, "placements", None)
        if layout is not None and [str(each) for each in layout] not in (
            ["S(0)"],
            ["Shard(dim=0)"],
        ):
            raise InputError(f"{name} is laid out as {layout}, expected cut along its rows once")
        if is_cut(parameter):
            weights[name] = shape_of(parameter)
    moved = weights
    if zero:
        moved = {n: shape_of(p) for n, p in parameters.items() if p.requires_grad}
    return Cut(weights, moved, elements if moved else {})


def places_of(model: Any, zero: Zero | None, elements: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return which places of its own pieces a process looks at: those that the elements of the whole tensors are."""
    found = {}
    for name, parameter in model.named_parameters():
        if name in elements:
            place = zero.place(parameter) if zero else None
            start, count = (place.start, place.count) if place else _span(parameter)
            own = elements[name] - start
            found[name] = own[(own >= 0) & (own < (count if place or not zero else 0))]
    return found


def _span(parameter: Any) -> tuple[int, int]:
    """Return where the piece of a DTensor begins, and how long it is."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    row = parameter.shape[1:].numel()
    return offset[0] * row, shape[0] * row


@dataclass(frozen=True)
class _Place:
    """Where a parameter's piece lies: `count` numbers of a flat tensor from `offset` on. start: in the parameter."""

    flat: Tensor
    offset: int
    count: int
    start: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.detach().narrow(0, self.offset, self.count)


class Zero:
    """What DeepSpeed's ZeRO optimizer, of any stage, holds on this process. names: of the parameters, by id."""

    def __init__(self, optimizer: Any, model: Any, rank: int) -> None:
        self._zero, self._rank = optimizer, rank
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.optimizer = optimizer.optimizer

    def place(self, parameter: Any) -> _Place | None:
        """Return where a parameter's piece lies; None where this process has none."""
        zero = self._zero
        if hasattr(parameter, "ds_tensor"):
            group, offset, count = zero.grad_position[zero.get_param_id(parameter)]
            flat = zero.fp32_partitioned_groups_flat[group]
            return _Place(flat, offset, count, self._rank * parameter.ds_tensor.numel())
        own = getattr(parameter, "_hp_mapping", None)
        if own is None:
            return None
        flat = zero.single_partition_of_fp32_groups[own.param_group_index]
        at = own.hp_fragment_address
        return _Place(flat, at.start, at.numel, own.lp_fragment_address.start)

    def _places(self) -> Iterator[tuple[str, Any, _Place]]:
        for name, parameter in self._trained.items():
            place = self.place(parameter)
            if place is not None:
                yield name, parameter, place

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients' pieces between the last backward pass and the step."""
        found = {}
        for name, parameter, place in self._places():
            if hasattr(parameter, "ds_tensor"):
                piece = self._zero.get_local_fp32_grad_for_param(parameter)
            else:
                piece = parameter._hp_mapping.get_lp_grad_fragment(parameter._index_in_param_group)
                piece = piece.flatten()
                if piece.numel() != place.count:
                    piece = piece.narrow(0, place.start, place.count)
            found[name] = piece.detach() / self._zero.loss_scale
        return found

    def stepping(self) -> dict[str, Tensor]:
        """Return, where the optimizer is about to step, the pieces of the gradients that it reads."""
        return {
            name: place.of(place.flat.grad)
            for name, _, place in self._places()
            if place.flat.grad is not None
        }

    def state(self, record: Record) -> dict[str, dict[str, Tensor]]:
        """Return the pieces of the optimizer's state, or the part of them that the record is of."""
        return {
            name: {
                key: kept(
                    record.part(name, place.of(value)) if value.shape == place.flat.shape else value
                )
                for key, told in self.optimizer.state.get(place.flat, {}).items()
                if isinstance(told, Tensor | int | float)
                for value in [torch.as_tensor(told)]
            }
            for name, _, place in self._places()
        }

    def groups(self) -> list[Mapping[str, Any]]:
        """Return the optimizer's groups, with the model's parameters in them."""
        zero, groups = self._zero, self.optimizer.param_groups
        if hasattr(zero, "bit16_groups"):
            members = [*zero.bit16_groups]
        else:
            members = [[] for _ in groups]
            for number, own in enumerate(zero.fp16_groups):
                members[zero.sub_group_to_group_id[number]] += own
        return [{**group, "params": own} for group, own in zip(groups, members, strict=True)]
