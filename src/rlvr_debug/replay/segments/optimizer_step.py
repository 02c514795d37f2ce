"""optimizer step: the weights move by what the optimizer's own class makes of the gradient and of its state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import Keyed
from rlvr_debug.errors import reason
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, OWN, Gap, Instance, Segment, in_bfloat16, rounding
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import ParameterGroup, Record, Update
from rlvr_debug.replay.segments.gradient import less, norm
from rlvr_debug.replay.settings import Settings

_NO_GROUP = ParameterGroup((), 0.0, 0.0)
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# how it is computed, and not what
_PLAINLY = dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), False)
_ASKING = ("LBFGS", "SparseAdam", "Optimizer")  # for what a record does not have
_WHOLE = ("Muon", "Adafactor", "transformers.Adafactor")  # whose step is no matter of each number


def _class_of(kind: str) -> Any:
    """Return a class of torch's or transformers'. Raise NotSeen for any other."""
    if kind == "transformers.Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor
    found = getattr(torch.optim, kind, None)
    if kind in _ASKING or not isinstance(found, type):
        raise NotSeen(f"optimizer {kind} has no reference")
    return found


def _instances(record: Record, _: Network) -> Iterator[Instance]:
    last: Update | None = None
    for number, update in enumerate(record.updates):
        if not update.optimizer or update.clipped is None or not record.weights:
            raise NotSeen("the optimizer, what it reads or the weights were not seen")
        for kind in filter(None, (update.optimizer, record.settings.optimizer)):
            _class_of(kind)
            if record.elements and kind in _WHOLE:
                raise NotSeen(f"{kind} reads whole tensors, and a part of them was kept")
        moved = any(group.momentum or group.options.get("momentum") for group in update.groups)
        if update.state is None and (moved or update.optimizer != "SGD"):
            raise NotSeen("the optimizer's state was not seen")
        rate = learning_rate(record.settings, record.settings.first_step + number)
        lost = last is not None and not _continues(last, update)
        given = (record, update, rate, lost)
        yield Instance(
            f"update {number + 1}", partial(_compare, *given), partial(_described, *given)
        )
        last = update


def _compare(
    record: Record,
    update: Update,
    rate: float | None,
    lost: bool,
    *,
    state_lost: bool = False,
    **knobs: Any,
) -> Gap | None:
    if state_lost:
        return Gap(0.0 if lost else math.inf)
    if lost and not knobs:
        return Gap(math.inf, math.inf)
    return _gap(record, update, rate, knobs)


def learning_rate(settings: Settings, step: int) -> float | None:
    """Return the schedule's rate at a step, from 0: those of transformers that GRPO is trained with; None for others."""
    warm, total, rate = settings.warmup_steps, settings.total_steps, settings.learning_rate
    if settings.schedule == "constant":
        return rate
    if step < warm:
        return rate * step / max(1, warm)
    share = (step - warm) / max(1, total - warm)
    if settings.schedule == "constant_with_warmup":
        return rate
    if settings.schedule == "linear":
        return rate * max(0.0, 1 - share)
    if settings.schedule == "cosine":
        return rate * max(0.0, 0.5 * (1 + math.cos(math.pi * share)))
    return None


def _continues(last: Update, update: Update) -> bool:
    """Return whether the state is the one that the last step left."""
    state = update.state or {}
    return all(
        name in state
        and all(
            key in state[name] and torch.equal(tensor, state[name][key])
            for key, tensor in tensors.items()
        )
        for name, tensors in last.state_after.items()
    )


def _parts(record: Record, number: int) -> dict[str, Tensor]:
    """Return the numbers of the trainable weights that are looked at."""
    weights = record.weights[number]
    return {name: record.part(name, weights[name]) for name in record.trainable}


def _gap(
    record: Record, update: Update, rate: float | None, knobs: Mapping[str, Any]
) -> Gap | None:
    before, after = _parts(record, update.before), _parts(record, update.after)
    moved = {n: after[n].double() - before[n].double() for n in record.trainable}
    if knobs.get("frozen"):
        still = [name for name in moved if not moved[name].any()]
        if not still or len(still) == len(moved):
            return None
        moved = {name: tensor for name, tensor in moved.items() if name not in still}
    wanted = _expected(record, update, rate, knobs)
    if wanted is None:
        return None
    rounded = _expected(record, update, rate, knobs, exact=False) or {}
    wanted, rounded = ({name: each[name] for name in moved} for each in (wanted, rounded))
    if knobs.get("stored") == "bfloat16":
        for name, tensor in wanted.items():
            held = before[name].double()
            stored = in_bfloat16(held + tensor, EPSILON * held.abs())
            wanted[name], rounded[name] = (each - held for each in stored)
    noise = norm(less(rounded, wanted))
    size = norm(wanted)
    off = norm(less(moved, wanted))
    return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))


def _expected(
    record: Record,
    update: Update,
    rate: float | None,
    knobs: Mapping[str, Any],
    *,
    exact: bool = True,
) -> dict[str, Tensor] | None:
    """Return how far each trainable weight is to move; None where a variant is not applicable.

    The optimizer's own class steps on copies. exact: in float64; else as the weights, the gradient and the state are held,
    which tells what rounding makes.
    """
    kind = record.settings.optimizer or update.optimizer
    if not _applies(record, update, kind, rate, knobs):
        return None
    kind = "Adam" if knobs.get("coupled") else update.optimizer if knobs.get("own_kind") else kind
    held = {name for group in update.groups for name in group.names}
    found = {}
    for name, weight in _parts(record, update.before).items():
        gradient = (update.clipped or {}).get(name)
        if gradient is None or (knobs.get("held_only") and name not in held):
            found[name] = torch.zeros((), dtype=torch.float64)
            continue
        state = {} if knobs.get("first") else (update.state or {}).get(name, {})
        if not knobs.get("corrected", True):
            # of a step so late that there is nothing to correct
            zeros = {key: torch.zeros_like(weight) for key in _MOMENTS}
            state = {**zeros, **state, "step": torch.tensor(1e9)}
        tensors = (weight, gradient, state)
        options = _options(record, update, name, rate, knobs)
        moved = _moved(kind, options, *(_in_float64(*tensors) if exact else tensors))
        found[name] = knobs.get("times", 1.0) * moved
    return found


def _applies(
    record: Record, update: Update, kind: str, rate: float | None, knobs: Mapping[str, Any]
) -> bool:
    """Return whether a variant differs from what is asked for. kind: of optimizer, which is asked for."""
    held = {name for group in update.groups for name in group.names}
    rates = [group.learning_rate for group in update.groups]
    return not (
        (knobs.get("own_kind") and kind == update.optimizer)
        or (knobs.get("own_decay") and record.decayed is None)
        or (knobs.get("coupled") and kind != "AdamW")
        or (not knobs.get("corrected", True) and kind not in ("Adam", "AdamW"))
        or (knobs.get("held_only") and held.issuperset(record.trainable))
        or (knobs.get("own_rate") and all(_near(own, rate or 0.0) for own in rates))
    )


def _options(
    record: Record, update: Update, name: str, rate: float | None, knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that a parameter's step is to have. rate: of the schedule, None for the group's own."""
    settings = record.settings
    first = update.groups[0] if update.groups else _NO_GROUP
    group = next((each for each in update.groups if name in each.names), first)
    decay = settings.weight_decay if group is _NO_GROUP else group.weight_decay
    if record.decayed is not None and not knobs.get("own_decay"):
        decay = settings.weight_decay if name in record.decayed else 0.0
    options = {
        "betas": settings.betas,
        "eps": settings.adam_epsilon,
        "momentum": group.momentum,
        **group.options,
        "lr": group.learning_rate if rate is None or knobs.get("own_rate") else rate,
        "weight_decay": knobs.get("decay", decay),
        **_PLAINLY,
    }
    return {**options, "decoupled_weight_decay": False} if knobs.get("coupled") else options


def _near(rate: float, expected: float) -> bool:
    return abs(rate - expected) <= 1e-3 * max(abs(expected), 1e-12)


def _in_float64(
    weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    wide = {key: t.double() if t.is_floating_point() else t for key, t in state.items()}
    return weight.double(), gradient.double(), wide


def _moved(
    kind: str,
    options: Mapping[str, Any],
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
) -> Tensor:
    """Return how far the optimizer's class moves a weight, in float64. Raise NotSeen where it cannot."""
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.to(weight.dtype, copy=True)
    try:
        optimizer = _class_of(kind)([parameter])
        [group] = optimizer.param_groups
        group.update({name: value for name, value in options.items() if name in group})
        if state:
            optimizer.state[parameter] = {
                key: each.clone() if each.is_floating_point() else each.item()
                for key, each in state.items()
            }
        optimizer.step()
    except NotSeen:
        raise
    except Exception as error:  # whatever it says of options and of a state that are not its own
        raise NotSeen(f"{kind} cannot make the step again: {reason(error)}") from error
    return parameter.detach().double() - weight.double()


def _described(record: Record, update: Update, rate: float | None, lost: bool) -> str:
    before, after = _parts(record, update.before), _parts(record, update.after)
    moved = {n: after[n].double() - before[n].double() for n in record.trainable}
    wanted = _expected(record, update, rate, {}) or {}
    said = [f"moved {norm(moved) / max(norm(wanted), 1e-30):.3g} of what it should"]
    if lost:
        said.append("the optimizer's state is not the one that the last step left")
    if record.settings.optimizer not in ("", update.optimizer):
        said.append(f"made by {update.optimizer}, {record.settings.optimizer} was asked for")
    held = {name for group in update.groups for name in group.names}
    if missing := [name for name in record.trainable if name not in held]:
        said.append(f"{_some(missing)} not in the optimizer")
    still = [name for name, tensor in moved.items() if not tensor.any()]
    if still and any(norm({name: wanted[name]}) for name in still if name in wanted):
        said.append(f"{_some(still)} not moved")
    rates = sorted({group.learning_rate for group in update.groups})
    if rate is not None and not all(_near(own, rate) for own in rates):
        said.append(f"learning rate {rates[-1]:.3g}, expected {rate:.3g}")
    return "; ".join(said)


def _some(names: list[str]) -> str:
    more = ", ..." if len(names) > 2 else ""
    return f"{len(names)} tensors ({', '.join(sorted(names)[:2])}{more})"


_KNOBS = Keyed(
    {
        **dict.fromkeys(("frozen", "held_only", "own_rate", "first", "state_lost"), bool),
        **dict.fromkeys(("corrected", "coupled", "own_decay", "own_kind"), bool),
        "times": float,
        "decay": float,
        "stored": Literal["bfloat16"],
    }
)
STEP = Segment("optimizer step", _instances, _KNOBS, of="updates", trains=True)
