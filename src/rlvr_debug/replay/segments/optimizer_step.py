"""optimizer step: the weights move by what the optimizer's own class makes of the gradient and of its state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
        step = _Step(
            record,
            update,
            learning_rate(record.settings, record.settings.first_step + number),
            last is not None and not _continues(last, update),
        )
        yield Instance(f"update {number + 1}", step.compare, step.described)
        last = update


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


@dataclass(frozen=True)
class _Step:
    """An optimizer's step. rate: of the schedule, None for each group's own; lost: whether the state is not the last step's."""

    record: Record
    update: Update
    rate: float | None
    lost: bool

    def compare(self, *, state_lost: bool = False, **knobs: Any) -> Gap | None:
        if state_lost:
            return Gap(0.0 if self.lost else math.inf)
        if self.lost and not knobs:
            return Gap(math.inf, math.inf)
        moved = self.moved
        if knobs.get("frozen"):
            still = [name for name in moved if not moved[name].any()]
            if not still or len(still) == len(moved):
                return None
            moved = {name: tensor for name, tensor in moved.items() if name not in still}
        if not self.applies(knobs):
            return None
        wanted, rounded = self.expected(knobs), self.expected(knobs, exact=False)
        wanted, rounded = ({name: each[name] for name in moved} for each in (wanted, rounded))
        if knobs.get("stored") == "bfloat16":
            before = self.parts(self.update.before)
            for name, tensor in wanted.items():
                held = before[name].double()
                stored = in_bfloat16(held + tensor, EPSILON * held.abs())
                wanted[name], rounded[name] = (each - held for each in stored)
        noise, size = norm(less(rounded, wanted)), norm(wanted)
        off = norm(less(moved, wanted))
        return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))

    def parts(self, number: int) -> dict[str, Tensor]:
        """Return the numbers of the trainable weights that are looked at."""
        record, weights = self.record, self.record.weights[number]
        return {name: record.part(name, weights[name]) for name in record.trainable}

    @property
    def moved(self) -> dict[str, Tensor]:
        before, after = self.parts(self.update.before), self.parts(self.update.after)
        return {name: after[name].double() - before[name].double() for name in before}

    @property
    def asked(self) -> str:
        """Return the kind of optimizer that is asked for."""
        return self.record.settings.optimizer or self.update.optimizer

    @property
    def held(self) -> set[str]:
        return {name for group in self.update.groups for name in group.names}

    @property
    def scheduled(self) -> bool:
        """Return whether each group has the schedule's rate."""
        rate = self.rate or 0.0
        off = (abs(group.learning_rate - rate) for group in self.update.groups)
        return all(each <= 1e-3 * max(abs(rate), 1e-12) for each in off)

    def applies(self, knobs: Mapping[str, Any]) -> bool:
        """Return whether a variant differs from what is asked for."""
        return not (
            (knobs.get("own_kind") and self.asked == self.update.optimizer)
            or (knobs.get("own_decay") and self.record.decayed is None)
            or (knobs.get("coupled") and self.asked != "AdamW")
            or (not knobs.get("corrected", True) and self.asked not in ("Adam", "AdamW"))
            or (knobs.get("held_only") and self.held.issuperset(self.record.trainable))
            or (knobs.get("own_rate") and self.scheduled)
        )

    def expected(self, knobs: Mapping[str, Any], *, exact: bool = True) -> dict[str, Tensor]:
        """Return how far each trainable weight is to move.

        The optimizer's own class steps on copies. exact: in float64; else as the weights, the gradient and the state are held,
        which tells what rounding makes.
        """
        update = self.update
        kind = update.optimizer if knobs.get("own_kind") else self.asked
        kind = "Adam" if knobs.get("coupled") else kind
        found = {}
        for name, weight in self.parts(update.before).items():
            gradient = (update.clipped or {}).get(name)
            if gradient is None or (knobs.get("held_only") and name not in self.held):
                found[name] = torch.zeros((), dtype=torch.float64)
                continue
            state = {} if knobs.get("first") else (update.state or {}).get(name, {})
            if not knobs.get("corrected", True):
                # of a step so late that there is nothing to correct
                zeros = {key: torch.zeros_like(weight) for key in _MOMENTS}
                state = {**zeros, **state, "step": torch.tensor(1e9)}
            if exact:
                weight, gradient = weight.double(), gradient.double()
                state = {k: t.double() if t.is_floating_point() else t for k, t in state.items()}
            moved = _moved(kind, self.options(name, knobs), weight, gradient, state)
            found[name] = knobs.get("times", 1.0) * moved
        return found

    def options(self, name: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that a parameter's step is to have."""
        settings, groups, decayed = self.record.settings, self.update.groups, self.record.decayed
        first = groups[0] if groups else ParameterGroup((), 0.0, settings.weight_decay)
        group = next((each for each in groups if name in each.names), first)
        decay = group.weight_decay
        if decayed is not None and not knobs.get("own_decay"):
            decay = settings.weight_decay if name in decayed else 0.0
        own = self.rate is None or knobs.get("own_rate")
        options = {
            "betas": settings.betas,
            "eps": settings.adam_epsilon,
            "momentum": group.momentum,
            **group.options,
            "lr": group.learning_rate if own else self.rate,
            "weight_decay": knobs.get("decay", decay),
            **_PLAINLY,
        }
        return {**options, "decoupled_weight_decay": False} if knobs.get("coupled") else options

    def described(self) -> str:
        record, update = self.record, self.update
        moved, wanted = self.moved, self.expected({})
        said = [f"moved {norm(moved) / max(norm(wanted), 1e-30):.3g} of what it should"]
        if self.lost:
            said.append("the optimizer's state is not the one that the last step left")
        if self.asked != update.optimizer:
            said.append(f"made by {update.optimizer}, {self.asked} was asked for")
        if missing := [name for name in record.trainable if name not in self.held]:
            said.append(f"{_some(missing)} not in the optimizer")
        still = [name for name, tensor in moved.items() if not tensor.any()]
        if still and any(norm({name: wanted[name]}) for name in still):
            said.append(f"{_some(still)} not moved")
        if self.rate is not None and not self.scheduled:
            rate = max(group.learning_rate for group in update.groups)
            said.append(f"learning rate {rate:.3g}, expected {self.rate:.3g}")
        return "; ".join(said)


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
