"""What recorders keep of a trainer at work: the policy's weights, gradients, and the optimizer's groups and state.

Of a model that is cut up by FSDP or ZeRO that is what lies on one of several processes: nothing is exchanged for it. A piece is
flat; the pieces of a tensor, one after the other by rank, are the tensor.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from rlvr_debug.errors import InputError
from rlvr_debug.replay.record import MASTER, ParameterGroup, Record
from rlvr_debug.replay.segments.gradient import norm, norm_as_summed


class Snapshots:
    """Keeps a policy's weights in its record, once for each state; of a large model on disk, of one that is cut up its pieces here."""

    def __init__(self, model: Any, record: Record) -> None:
        self._model, self._record = model, record
        large = bool(record.elements)
        self._spill = tempfile.TemporaryDirectory(prefix="rlvr-debug-") if large else None
        self._numbers = itertools.count()
        # FSDP has whole parameters stand for the pieces during a forward pass, and these go on being what is trained
        self._cut = {n: p for n, p in parameters_of(model).items() if is_cut(p)}
        self._frozen = {
            name: local(parameter).cpu() if large else kept(local(parameter))
            for name, parameter in parameters_of(model).items()
            if not parameter.requires_grad
        }

    def take(self, *, new: bool = False) -> int:
        """Return the number of the weights of now. new: as others than those before: a piece may stay where others change."""
        now = {
            n: local(p)
            for n, p in {**parameters_of(self._model), **self._cut}.items()
            if p.requires_grad or n not in self._frozen
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
    return {id(parameter): name for name, parameter in parameters_of(model).items()}


def gradients_of(model: Any, record: Record) -> dict[str, Tensor]:
    return parts_of(_gradients(model), record)


def parts_of(tensors: Mapping[str, Tensor], record: Record) -> dict[str, Tensor]:
    """Return a copy of tensors of parameters, or of the part of them that the record is of."""
    return {name: kept(record.part(name, tensor)) for name, tensor in tensors.items()}


def _gradients(model: Any) -> dict[str, Tensor]:
    return {n: local(p.grad) for n, p in parameters_of(model).items() if p.grad is not None}


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
    """Return how an optimizer's groups treat the named parameters. asked: options that hold; None: options are left out."""
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
    found = ((names.get(id(p)), p, state) for p, state in optimizer.state.items())
    return {
        name: kept_state(state, parameter.shape, local, partial(record.part, name))
        for name, parameter, state in found
        if name is not None
    }


# --- pieces

_PLACE = "rlvr_debug_place"  # of a parameter of FSDP's first version


@dataclass(frozen=True)
class Cut:
    """Shapes of what is cut up, by parameter: weights; gradients and the optimizer's state.

    adapter: scalings of the reference model's adapter, None where the reference is no adapter's.
    """

    weights: Mapping[str, torch.Size] = field(default_factory=dict)
    moved: Mapping[str, torch.Size] = field(default_factory=dict)
    elements: Mapping[str, Tensor] = field(default_factory=dict)
    adapter: Mapping[str, Mapping[str, float]] | None = None


def kept(tensor: Tensor) -> Tensor:
    """Return a copy that training does not change."""
    return tensor.detach().cpu().clone()


def kept_state(
    state: Mapping[str, Any],
    shape: torch.Size,
    own: Callable[[Tensor], Tensor],
    part: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return a copy of an optimizer's numbers of a parameter. own, part: what of those in its shape lies here, and is kept."""
    numbers = {
        k: torch.as_tensor(v) for k, v in state.items() if isinstance(v, Tensor | int | float)
    }
    return {k: kept(part(own(v)) if v.shape == shape else v) for k, v in numbers.items()}


def local(tensor: Any) -> Tensor:
    """Return the piece of a tensor that lies here; one that is not cut up as it is."""
    if hasattr(tensor, "to_local"):
        piece: Tensor = tensor.detach().to_local().reshape(-1)
        return piece
    place: _Place | None = getattr(tensor, _PLACE, None)
    if place is not None:
        return place.of(getattr(place.flat, "_local_shard", place.flat))
    found: Tensor = getattr(tensor, "ds_tensor", tensor)
    return found.detach()


def stacked(parts: Sequence[Tensor], name: str, value: int = 0) -> Tensor:
    """Return the rows of all parts as one tensor, padded to the longest: prompts on the left, all else on the right."""
    if parts[0].dim() == 1:
        return torch.cat([*parts])
    gaps = [max(each.shape[1] for each in parts) - part.shape[1] for part in parts]
    sides = [(gap, 0) if name.startswith("prompt") else (0, gap) for gap in gaps]
    return torch.cat([pad(*pair, value=value) for pair in zip(parts, sides, strict=True)])


def is_cut(parameter: Any) -> bool:
    return any(hasattr(parameter, name) for name in ("placements", "ds_tensor", _PLACE))


def shape_of(parameter: Any) -> torch.Size:
    place = getattr(parameter, _PLACE, None)
    shape: torch.Size = place.shape if place else getattr(parameter, "ds_shape", parameter.shape)
    return shape


def own_name(name: str) -> str:
    """Return a name without what FSDP's first version puts between a module and the one that holds it."""
    return name.replace("_fsdp_wrapped_module.", "")


def parameters_of(model: Any) -> dict[str, Any]:
    return {own_name(name): parameter for name, parameter in model.named_parameters()}


def place_pieces(model: Any) -> None:
    """Have each piece that FSDP's first version made of a parameter say where it lies: it is not always in the model."""
    for module in model.modules():
        handle = getattr(module, "_handle", None)
        if handle is None or not handle.uses_sharded_strategy:
            continue
        flat = handle.flat_param
        if flat._params is None:  # all that the model has of them is the flat one
            continue
        told = zip(flat._params, flat._shard_param_infos, flat._shapes, strict=True)
        for parameter, info, shape in told:
            numbers = (info.offset_in_shard, info.numel_in_shard, info.intra_param_start_idx)
            offset, count, start = (each or 0 for each in numbers)
            setattr(parameter, _PLACE, _Place(flat, offset, count, start, shape))


@dataclass(frozen=True)
class _Place:
    """Where a parameter's piece lies: `count` numbers of a flat tensor from `offset` on. start: in the parameter.

    shape: of the whole, where the parameter has it no longer.
    """

    flat: Tensor
    offset: int
    count: int
    start: int
    shape: torch.Size = field(default_factory=torch.Size)

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.detach().narrow(0, self.offset, self.count)


class Zero:
    """What DeepSpeed's ZeRO optimizer, of any stage, holds on this process. names: of the parameters, by id."""

    def __init__(self, optimizer: Any, model: Any, rank: int) -> None:
        self._zero, self._rank = optimizer, rank
        self._trained = {n: p for n, p in parameters_of(model).items() if p.requires_grad}
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
        found = {}
        for name, parameter, place in self._places():
            held = dict(self.optimizer.state.get(place.flat, {}))
            if place.flat.dtype != parameter.dtype:
                held[MASTER] = place.flat
            found[name] = kept_state(held, place.flat.shape, place.of, partial(record.part, name))
        return found

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


def cut_of(model: Any, zero: Zero | None, elements: Mapping[str, Tensor]) -> Cut:
    """Return what of a model is cut up. Raise InputError where its pieces do not follow one another by rank."""
    parameters = parameters_of(model)
    weights = {}
    for name, parameter in parameters.items():
        layout = getattr(parameter, "placements", None)
        if layout is not None and [str(each) for each in layout] not in (
            ["S(0)"],
            ["Shard(dim=0)"],
        ):
            raise InputError(
                f"{name} is sharded as {layout}, expected one shard per rank along dimension 0"
            )
        if is_cut(parameter):
            weights[name] = shape_of(parameter)
    moved = weights
    if zero:
        moved = {n: shape_of(p) for n, p in parameters.items() if p.requires_grad}
    return Cut(weights, moved, elements if moved else {})


def places_of(model: Any, zero: Zero | None, elements: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return which places of its own pieces a process looks at: those that the elements of the whole tensors are."""
    found = {}
    for name, parameter in parameters_of(model).items():
        if name in elements:
            place = zero.place(parameter) if zero else getattr(parameter, _PLACE, None)
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
