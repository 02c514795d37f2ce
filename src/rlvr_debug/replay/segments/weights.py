"""optimizer step, weights between steps, saved weights: where the policy's weights change, by how much, and what is kept of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import Keyed
from rlvr_debug.errors import reason
from rlvr_debug.replay.finding import NotSeen, need, seen
from rlvr_debug.replay.judge import (
    EPSILON,
    OWN,
    Gap,
    Instance,
    certain,
    different,
    in_bfloat16,
    rounding,
)
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import MASTER, ParameterGroup, Record, Update, Weights
from rlvr_debug.replay.segments.gradient import less, norm
from rlvr_debug.replay.settings import Settings

# --- optimizer step

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
    known = kind not in _ASKING and isinstance(found, type)
    need(known, f"no reference code for optimizer {kind}")
    return found


def optimizer_steps(record: Record, _: Network) -> Iterator[Instance]:
    """optimizer step: the weights move by what the optimizer's own class makes of the gradient and of its state."""
    if left := [*_left(record)]:
        yield from left
        return
    last: Update | None = None
    for number, update in enumerate(record.updates):
        known = update.optimizer and update.clipped is not None and record.weights
        need(known, "the optimizer, its inputs or the weights were not recorded")
        for kind in filter(None, (update.optimizer, record.settings.optimizer)):
            _class_of(kind)
            enough = not record.elements or kind not in _WHOLE
            need(enough, f"{kind} needs whole tensors, but only parts were recorded")
        moved = any(group.momentum or group.options.get("momentum") for group in update.groups)
        stateless = update.optimizer == "SGD" and not moved
        need(update.state is not None or stateless, "the optimizer's state was not recorded")
        step = _Step(
            record,
            update,
            learning_rate(record.settings, record.settings.first_step + number),
            last is not None and not _continues(last, update),
            number > 0,
        )
        yield Instance(f"update {number + 1}", step.compare, step.described)
        last = update


def _left(record: Record) -> Iterator[Instance]:
    """Yield the updates in which a user's optimizer, that steps a part of the weights in each process, leaves some of them."""
    for number, update in enumerate(record.updates if record.weights else ()):
        states = [state for each in record.processes for state in each.states[number : number + 1]]
        if "." not in update.optimizer or all(state == states[0] for state in states):
            continue
        before, after = record.weights[update.before], record.weights[update.after]
        still = {name for name in before if torch.equal(before[name], after[name])}
        still -= {name for name, gradient in (update.clipped or {}).items() if not gradient.any()}
        still = {n for n in still if any(each.get(n) != states[0].get(n) for each in states)}
        if still and len(still) < len(before):
            names = ", ".join(sorted(still)[:3])
            said = (
                f"{len(still)} of {len(before)} tensors have a gradient and do not move ({names})"
            )
            yield certain(f"update {number + 1}", len(still), said)


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
    """Return whether the state is the one that the last step left; where that one was taken away, whether it counts on."""
    state, before = update.state or {}, last.state or {}
    for name in state.keys() & (last.clipped or {}).keys():
        counts = [float(each.get("step", -1)) for each in (before.get(name, {}), state[name])]
        if "step" in state[name] and counts[1] <= max(counts[0], 0):
            return False
    left = ((n, key, t) for n, tensors in last.state_after.items() for key, t in tensors.items())
    return last.state_after.keys() <= state.keys() and all(
        key in state[name] and torch.equal(tensor, state[name][key]) for name, key, tensor in left
    )


@dataclass(frozen=True)
class _Step:
    """An optimizer's step. rate: of the schedule, None for each group's own; lost: whether the state is not the last step's;
    later: whether another one was recorded before.
    """

    record: Record
    update: Update
    rate: float | None
    lost: bool
    later: bool

    @property
    def ahead(self) -> bool:
        """Return whether a schedule of the user's own has made more steps than updates."""
        return self.later and self.rate is None and self.record.settings.schedule_pace > 1

    def compare(self, *, state_lost: bool = False, **knobs: Any) -> Gap | None:
        if state_lost:
            return Gap(0.0 if self.lost else math.inf)
        if (self.lost and not knobs) or (self.ahead and not knobs.get("own_rate")):
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
            before = self.before
            for name, tensor in wanted.items():
                held = before[name].double()
                stored = in_bfloat16(held + tensor, EPSILON * held.abs())
                wanted[name], rounded[name] = (each - held for each in stored)
        noise, size = norm(less(rounded, wanted)), norm(wanted)
        off = norm(less(moved, wanted))
        return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))

    def parts(self, number: int, state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return weights, or what the optimizer steps in their place, where they are what that rounds to."""
        record, weights = self.record, self.record.weights[number]
        found = {name: record.part(name, weights[name]) for name in self.trained}
        for name, held in found.items():
            master = state.get(name, {}).get(MASTER)
            if master is not None and torch.equal(master.to(held.dtype).view_as(held), held):
                found[name] = master.view_as(held)
        return found

    @property
    def trained(self) -> list[str]:
        """Return the weights that are to move: those of the first step, and what has a gradient since and is in no group.

        Where none was trainable in the first step, *effect* says so.
        """
        record, held = self.record, self.held
        if not record.trainable:
            return []
        weights = record.weights[self.update.before]
        known = {id(weights[name]) for name in record.trainable}
        later = [
            name
            for name, gradient in (self.update.clipped or {}).items()
            if name not in held and id(weights.get(name)) not in known and gradient.any()
        ]
        return [*record.trainable, *(name for name in later if name in weights)]

    @property
    def before(self) -> dict[str, Tensor]:
        return self.parts(self.update.before, self.update.state or {})

    @property
    def moved(self) -> dict[str, Tensor]:
        before, after = self.before, self.parts(self.update.after, self.update.state_after)
        return {name: after[name].double() - before[name].double() for name in before}

    @property
    def asked(self) -> str:
        return self.record.settings.optimizer or self.update.optimizer

    @property
    def held(self) -> set[str]:
        return {name for group in self.update.groups for name in group.names}

    @property
    def scheduled(self) -> bool:
        rate = self.rate or 0.0
        off = (abs(group.learning_rate - rate) for group in self.update.groups)
        return self.multiples or all(each <= 1e-3 * max(abs(rate), 1e-12) for each in off)

    @property
    def multiples(self) -> bool:
        """Return whether groups have multiples of the schedule's rate, the same in each update, and one of them that rate.

        So LoRA+ and rates by layer are set; the arguments have one rate for all.
        """
        settings = self.record.settings
        found = []
        for number, update in enumerate(self.record.updates):
            if rate := learning_rate(settings, settings.first_step + number):
                found.append([group.learning_rate / rate for group in update.groups])
        steady = all(
            len(each) == len(found[0]) and all(map(_close, each, found[0])) for each in found
        )
        first = found[0] if found else []
        return steady and bool(first) and min(first) > 0 and any(_close(r, 1.0) for r in first)

    def applies(self, knobs: Mapping[str, Any]) -> bool:
        return not (
            (knobs.get("own_kind") and self.asked == self.update.optimizer)
            or (knobs.get("own_decay") and self.record.decayed is None)
            or (knobs.get("coupled") and self.asked != "AdamW")
            or (not knobs.get("corrected", True) and self.asked not in ("Adam", "AdamW"))
            or (knobs.get("held_only") and self.held.issuperset(self.trained))
            or (knobs.get("own_rate") and self.scheduled)
        )

    def expected(self, knobs: Mapping[str, Any], *, exact: bool = True) -> dict[str, Tensor]:
        """Return how far the optimizer's own class moves each weight, in float64 or, not exact, as all is held."""
        update = self.update
        kind = update.optimizer if knobs.get("own_kind") else self.asked
        kind = "Adam" if knobs.get("coupled") else kind
        found = {}
        for name, weight in self.before.items():
            gradient = (update.clipped or {}).get(name)
            if gradient is None or (knobs.get("held_only") and name not in self.held):
                found[name] = torch.zeros((), dtype=torch.float64)
                continue
            known = {} if knobs.get("first") else (update.state or {}).get(name, {})
            state = {key: each for key, each in known.items() if key != MASTER}
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
        settings, groups, decayed = self.record.settings, self.update.groups, self.record.decayed
        first = groups[0] if groups else ParameterGroup((), 0.0, settings.weight_decay)
        group = next((each for each in groups if name in each.names), first)
        decay = group.weight_decay
        if decayed is not None and not knobs.get("own_decay"):
            decay = settings.weight_decay if name in decayed else 0.0
        own = self.rate is None or knobs.get("own_rate") or self.multiples
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
        if self.ahead:
            pace = record.settings.schedule_pace
            said.append(
                f"the schedule advances {pace} steps per update: it reaches its end after 1/{pace} of the run"
            )
        if self.asked != update.optimizer:
            said.append(f"made by {update.optimizer}, {self.asked} was asked for")
        if missing := [name for name in self.trained if name not in self.held]:
            said.append(f"{_some(missing)} not in the optimizer")
        still = [name for name, tensor in moved.items() if not tensor.any()]
        if still and any(norm({name: wanted[name]}) for name in still):
            said.append(f"{_some(still)} not moved")
        if self.rate is not None and not self.scheduled:
            rate = max(group.learning_rate for group in update.groups)
            said.append(f"learning rate {rate:.3g}, expected {self.rate:.3g}")
        return "; ".join(said)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3)


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
        raise NotSeen(f"{kind}: the step cannot be recomputed: {reason(error)}") from error
    return parameter.detach().double() - weight.double()


def _some(names: list[str]) -> str:
    more = ", ..." if len(names) > 2 else ""
    return f"{len(names)} tensors ({', '.join(sorted(names)[:2])}{more})"


STEP_KNOBS = Keyed(
    {
        **dict.fromkeys(("frozen", "held_only", "own_rate", "first", "state_lost"), bool),
        **dict.fromkeys(("corrected", "coupled", "own_decay", "own_kind"), bool),
        "times": float,
        "decay": float,
        "stored": Literal["bfloat16"],
    }
)


# --- weights between steps, saved weights


def between_steps(record: Record, _: Network) -> Iterator[Instance]:
    """weights between steps: they change in the optimizer's step, and nowhere else."""
    need(record.weights, "the policy's weights were not recorded")
    held, before = record.weights, 0
    for number, update in enumerate(record.updates):
        numbers = [micro.weights for micro in update.micro_batches] or [update.before]
        first, written = numbers[0], numbers[0] != before
        late = update.touched or numbers[-1] != update.before
        found = {
            "they were written outside of the optimizer": written,
            "they change between two micro-batches of one update": len(set(numbers)) > 1,
            "they change between the last backward pass and the optimizer's step": late,
        }
        wrong = [text for text, is_so in found.items() if is_so]
        begun = (torch.equal(held[first][name], held[0][name]) for name in record.trainable)
        rounded = (
            torch.equal(w, held[before][n].bfloat16().to(w.dtype)) for n, w in held[first].items()
        )
        ways = {"bfloat16": all(rounded), "beginning": written and all(begun)}
        where = f"after update {number}" if number and written else f"update {number + 1}"
        yield Instance(where, partial(compare_between, len(wrong), ways), "; ".join(wrong))
        before = update.after


def compare_between(
    count: int, ways: Mapping[str, bool], *, how: Literal["", "bfloat16", "beginning"] = ""
) -> Gap:
    return different(not ways[how] if how else count)


def saved_weights(record: Record, network: Network) -> Iterator[Instance]:
    """saved weights: what the trainer saves is the policy that it trained."""
    saved = seen(record.saved, "nothing was saved")
    held = network.policy(len(record.weights) - 1)
    missing = _missing(held, saved)
    said = f"{len(missing)} of {len(held)} tensors are missing" if missing else ""
    yield Instance("the end", partial(compare_saved, record, network, saved), said)


def compare_saved(
    record: Record,
    network: Network,
    saved: Weights,
    *,
    first: bool = False,
    reference: bool = False,
    some: bool = False,
    stored: Literal["", "bfloat16", "float16", "float8_e4m3fn"] = "",
) -> Gap | None:
    """some: whether some tensors are initial ones. stored: the type that tensors were rounded to."""
    held: Weights
    last = len(record.weights) - 1
    if some or stored:
        held = network.policy(last)
        off = [name for name in held if name in saved and not torch.equal(saved[name], held[name])]
        if last < 1 or not off:
            return None
        kind = getattr(torch, stored, None)
        other = {n: t.to(kind).to(t.dtype) for n, t in held.items()} if kind else network.policy(0)
        return different(sum(not torch.equal(saved[n].to(other[n].dtype), other[n]) for n in off))
    if (first and last < 1) or (reference and record.reference is None):
        return None
    if reference:
        held = exact = seen(record.reference)
    else:
        held, exact = network.both(0 if first else last)
    return Gap(math.inf, math.inf) if _missing(held, saved) else weights_gap(saved, held, exact)


def weights_gap(got: Weights, held: Weights, exact: Weights) -> Gap:
    """Compare the weights that both have. held: as the run's precision merges an adapter; exact: the same in float64."""

    def squares(name: str, tensor: Tensor) -> Tensor:
        right, own = exact[name].double(), got[name].double()
        rounded = tensor.to(got[name].dtype).double()
        parts = (own - right, rounded - right, right)
        return torch.stack([part.square().sum() for part in parts])

    both = ((name, tensor) for name, tensor in held.items() if name in got)
    off, noise, size = sum(starmap(squares, both), torch.zeros(3).double()).sqrt().tolist()
    return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))


def _missing(held: Weights, saved: Weights) -> list[str]:
    """Return the weights that are saved neither under their name nor, as tied ones are, under another."""

    def tied(own: Tensor) -> bool:
        return any(
            own.shape == t.shape and torch.equal(t.to(own.dtype), own) for t in saved.values()
        )

    return [name for name in held if name not in saved and not tied(held[name])]
