"""Keeps what a step of a worker's optimizer reads and leaves, and puts together what all workers kept.

Workers exchange nothing for it. Each has flat pieces: those of all, by rank, are a parameter, or the several that FSDP's first
version makes one of.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders import keeping
from rlvr_debug.replay.record import Forward, ParameterGroup, Record
from rlvr_debug.replay.segments.logprobs import masked

LARGE = 50_000_000  # weights, from which on no step of the optimizer is kept


class Kept(NamedTuple):
    """What a worker wrote: tensors by name, and what is told beside them."""

    tensors: dict[str, Tensor]
    told: dict[str, Any]


def safely(lost: list[Any], what: str, function: Callable[..., None], *given: Any) -> None:
    """Call what records. Where it fails, say so, and add nothing to what is lost: the training goes on."""
    try:
        function(*given)
    except Exception as error:
        print(f"rlvr-debug: a worker's {what} could not be recorded: {error!r}", flush=True)
        lost.append({})


class StepWatch:
    """Keeps a step of an engine's optimizer. lost: not empty where something of it is not kept."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._own, self._kept = engine, dict[str, Any](), Kept({}, {})
        self.lost: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        engine = self._engine
        optimizer = getattr(engine, "optimizer", None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            yield
            return
        inner, own = engine.optimizer_step, "optimizer_step" in vars(engine)

        def stepped() -> Any:
            self._safely(self._begin)
            found = inner()
            self._safely(self._end)
            return found

        hook = optimizer.register_step_pre_hook(lambda *_: self._safely(self._read))
        engine.optimizer_step = stepped
        try:
            yield
        finally:
            del engine.optimizer_step
            if own:
                engine.optimizer_step = inner
            hook.remove()

    def _safely(self, function: Callable[[], None]) -> None:
        if not self.lost:
            safely(self.lost, "optimizer step", function)

    def _begin(self) -> None:
        """Keep weights and gradients. Backward has just put the pieces in their places again."""
        module = self._engine.module
        keeping.place_pieces(module)
        keeping.cut_of(module, None, {})  # raises where they are in another order
        self._own = own = keeping.parameters_of(module)
        count = sum(keeping.local(parameter).numel() for parameter in own.values())
        if count * torch.distributed.get_world_size() >= LARGE:
            self.lost.append({})
            return
        self._keep("before")
        self._keep("gradients")
        # of FSDP's first version, a flat parameter has the names of those that it is made of
        places = {name: name.removesuffix("_flat_param") for name in own}
        self._kept.told.update(
            names={
                n: [places[n] + f for f in getattr(p, "_fqns", ())] or [n] for n, p in own.items()
            },
            trainable=[name for name, parameter in own.items() if parameter.requires_grad],
        )

    def _read(self) -> None:
        optimizer, names = self._engine.optimizer, {id(p): n for n, p in self._own.items()}
        self._keep("clipped")
        self._keep_state("state")
        held = ((self._kept.tensors[f"before/{n}"], p) for n, p in self._own.items())
        self._kept.told.update(
            optimizer=keeping.kind_of(type(optimizer)),
            groups=[*map(asdict, keeping.groups_of(optimizer.param_groups, names, {}))],
            touched=any(not torch.equal(before, _piece(now)) for before, now in held),
        )

    def _end(self) -> None:
        self._keep("after")
        self._keep_state("state_after")

    def _keep(self, kind: str) -> None:
        for name, parameter in self._own.items():
            tensor = parameter if kind in ("before", "after") else parameter.grad
            if tensor is not None:
                self._kept.tensors[f"{kind}/{name}"] = _piece(tensor)

    def _keep_state(self, kind: str) -> None:
        for name, parameter in self._own.items():
            state = self._engine.optimizer.state.get(parameter, {})
            found = keeping.kept_state(state, parameter.shape, keeping.local, torch.flatten)
            self._kept.tensors.update({f"{kind}/{key}/{name}": t for key, t in found.items()})

    def write(self, folder: Path) -> None:
        if self._kept.tensors and not self.lost:
            ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
            self._safely(lambda: save(self._kept, folder, "step", *ranks))


def _piece(tensor: Any) -> Tensor:
    return keeping.kept(keeping.local(tensor)).flatten()


# --- the files


def save(kept: Kept, folder: Path, kind: str, rank: int, size: int) -> None:
    """Write what one of several workers kept of its next optimizer step."""
    from safetensors.torch import save_file

    number = len([*folder.glob(f"{kind}-*-{rank}-{size}.safetensors")])
    tensors = {name: held.cpu().contiguous() for name, held in kept.tensors.items()}
    path = folder / f"{kind}-{number}-{rank}-{size}.safetensors"
    save_file(tensors, path, {"told": json.dumps(kept.told)})


def saved(folder: Path, kind: str) -> list[list[Kept]]:
    """Return by optimizer step and rank what workers wrote, nothing where one of them wrote none."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    steps: dict[int, dict[int, Kept]] = {}
    size = 1
    for path in folder.glob(f"{kind}-*.safetensors"):
        number, rank, size = map(int, path.stem.split("-")[1:])
        with safe_open(path, "pt") as file:
            told = json.loads(file.metadata()["told"])
        steps.setdefault(number, {})[rank] = Kept(load_file(path), told)
    whole = all(len(ranks) == size for ranks in steps.values())
    return [[steps[n][rank] for rank in sorted(steps[n])] for n in sorted(steps) if whole]


# --- one of all workers


def fill(
    record: Record,
    steps: Sequence[Sequence[Kept]],
    shapes: Mapping[str, torch.Size],
) -> None:
    """Have a record know its weights, and what the optimizer read and left. Raise InputError where workers do not tell that.

    steps: of each update by rank. shapes: of the model's parameters.
    """
    if sum(shape.numel() for shape in shapes.values()) >= LARGE:
        raise InputError("of models with 50 M weights or more the optimizer's steps are not kept")
    if not steps or len(steps) != len(record.updates):
        raise InputError("not all workers wrote what their optimizer did")
    whole = [_whole(ranks, shapes) for ranks in steps]

    def number(weights: Mapping[str, Tensor]) -> int:
        held = record.weights
        if not held or any(not torch.equal(t, held[-1][name]) for name, t in weights.items()):
            held.append(weights)
        return len(held) - 1

    for update, own, ranks in zip(record.updates, whole, steps, strict=True):
        told, names = ranks[0].told, ranks[0].told["names"]
        record.trainable = tuple(each for name in told["trainable"] for each in names[name])
        update.before, update.after = number(own["before"]), number(own["after"])
        for micro in update.micro_batches:
            given = micro.given
            ids = torch.cat([given.prompt_ids, given.completion_ids], 1)
            # what the policy should read: what it reads is not recorded
            micro.weights, micro.forward = update.before, Forward(ids, masked(given))
        update.gradients, update.clipped = own.get("gradients", {}), own.get("clipped")
        update.state, update.state_after = _states(own, "state"), _states(own, "state_after")
        update.touched = any(each.told.get("touched", False) for each in ranks)
        update.optimizer = told.get("optimizer", "")
        ours = (
            ("betas", "eps") if update.optimizer in ("Adam", "AdamW") else ()
        )  # settings have them
        for group in told.get("groups", ()):
            options = {n: value for n, value in group["options"].items() if n not in ours}
            members = tuple(each for name in group["names"] for each in names[name])
            group |= {"names": members, "options": options}
            update.groups.append(ParameterGroup(**group))
    record.decayed = record.trainable  # verl makes one group of all parameters


def _whole(ranks: Sequence[Kept], shapes: Mapping[str, torch.Size]) -> dict[str, dict[str, Tensor]]:
    """Return by kind all parameters of the pieces. Raise InputError where these are not that."""
    found: dict[str, dict[str, Tensor]] = {}
    for key in dict.fromkeys(key for each in ranks for key in each.tensors):
        kind, _, name = key.rpartition("/")
        pieces = [each.tensors[key] for each in ranks if key in each.tensors]
        names = ranks[0].told["names"][name]
        if not pieces[0].dim():
            found.setdefault(kind, {}).update(dict.fromkeys(names, pieces[0]))
            continue
        flat, sizes = torch.cat(pieces), [shapes.get(n, torch.Size()).numel() for n in names]
        padding = flat.numel() - sum(sizes)
        if not {*names} <= shapes.keys() or not 0 <= padding < len(ranks):
            raise InputError(f"the workers' {names[0]} is not that of the configuration's model")
        parts = zip(names, torch.split(flat, [*sizes, padding]), strict=False)
        found.setdefault(kind, {}).update({n: part.view(shapes[n]) for n, part in parts})
    if found.get("before", {}).keys() != shapes.keys():
        raise InputError("the workers' parameters are not those of the configuration's model")
    return found


def _states(own: Mapping[str, Mapping[str, Tensor]], kind: str) -> dict[str, dict[str, Tensor]]:
    """Return by parameter what the optimizer holds of it."""
    found: dict[str, dict[str, Tensor]] = {}
    for place, tensors in own.items():
        key = place.removeprefix(f"{kind}/")
        for name, tensor in tensors.items() if key != place else ():
            found.setdefault(name, {})[key] = tensor
    return found
