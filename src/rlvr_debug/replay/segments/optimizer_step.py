"""optimizer step: the weights move by what the optimizer's formula makes of the gradient and its own state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, OWN, Gap, Instance, in_bfloat16, rounding
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Update
from rlvr_debug.replay.segments.gradient import less, norm
from rlvr_debug.replay.settings import Settings

SEGMENT = "optimizer step"
_COUPLED = {"AdamW": False, "Adam": True, "SGD": True}


def instances(record: Record, _: Network) -> Iterator[Instance]:
    last: Update | None = None
    for number, update in enumerate(record.updates):
        if not update.optimizer or update.clipped is None or not record.weights:
            raise NotSeen("the optimizer, what it reads or the weights were not seen")
        if update.optimizer not in _COUPLED:
            raise NotSeen(f"optimizer {update.optimizer} has no reference")
        moved = any(group.momentum for group in update.groups)
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

    AdamW: arXiv 1711.05101, algorithm 2; Adam: arXiv 1412.6980. A weight without gradient stays. exact: in float64; else
    as the weights, the gradient and the state are held, which tells what rounding makes.
    """
    settings = record.settings
    groups = {name: group for group in update.groups for name in group.names}
    own = knobs.get("own_rate", False)
    if own and all(
        abs(g.learning_rate - (rate or 0.0)) <= 1e-3 * abs(rate or 1e-12) for g in update.groups
    ):
        return None
    kind = settings.optimizer or update.optimizer
    if knobs.get("own_kind"):
        if kind == update.optimizer:
            return None
        kind = update.optimizer
    if knobs.get("own_decay") and record.decayed is None:
        return None
    before, found = _parts(record, update.before), {}
    for name in record.trainable:
        gradient = (update.clipped or {}).get(name)
        if gradient is None or (knobs.get("held_only") and name not in groups):
            found[name] = torch.zeros((), dtype=torch.float64)
            continue
        group = groups.get(name) or (update.groups[0] if update.groups else None)
        asked = rate if rate is not None and not own else (group.learning_rate if group else 0.0)
        decay = settings.weight_decay if group is None else group.weight_decay
        if record.decayed is not None and not knobs.get("own_decay"):
            decay = settings.weight_decay if name in record.decayed else 0.0
        decay = knobs.get("decay", decay)
        coupled = knobs.get("coupled", _COUPLED[kind])
        state = {} if knobs.get("first") else (update.state or {}).get(name, {})
        weight, gradient, state = (
            (before[name].double(), gradient.double(), {k: t.double() for k, t in state.items()})
            if exact
            else (before[name], gradient, state)
        )
        change = _change(
            weight,
            gradient,
            state,
            (decay if coupled else 0.0, knobs.get("corrected", True)),
            settings,
            (kind, group.momentum if group else 0.0),
        )
        asked *= knobs.get("times", 1.0)
        left = weight if coupled else weight * (1 - asked * decay)
        found[name] = (left - asked * change).to(weight.dtype).double() - weight.double()
    if knobs.get("held_only") and all(name in groups for name in record.trainable):
        return None
    return found


def _change(
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    how: tuple[float, bool],
    settings: Settings,
    optimizer: tuple[str, float],
) -> Tensor:
    """Return the direction that a step of rate 1 goes against.

    how: decay in the gradient; bias correction. optimizer: its class, and the momentum of SGD.
    """
    decay, corrected = how
    kind, momentum = optimizer
    gradient = gradient + decay * weight
    if kind == "SGD":
        held = state.get("momentum_buffer")
        return gradient if held is None else gradient + momentum * held
    one, two = settings.betas
    step = float(state["step"]) + 1 if "step" in state else 1.0
    zero = torch.zeros_like(gradient)
    mean = state.get("exp_avg", zero) * one + (1 - one) * gradient
    square = state.get("exp_avg_sq", zero) * two + (1 - two) * gradient.square()
    first, second = (1 - one**step, 1 - two**step) if corrected else (1.0, 1.0)
    return mean / first / ((square / second).sqrt() + settings.adam_epsilon)


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
    if rate is not None and any(abs(own - rate) > 1e-3 * max(rate, 1e-12) for own in rates):
        said.append(f"learning rate {rates[-1]:.3g}, expected {rate:.3g}")
    return "; ".join(said)


def _some(names: list[str]) -> str:
    more = ", ..." if len(names) > 2 else ""
    return f"{len(names)} tensors ({', '.join(sorted(names)[:2])}{more})"
