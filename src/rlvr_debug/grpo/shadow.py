"""The stages of another run, computed beside those of the run that is trained: in which step would the two part?

While the other implementation comes to the same on the same inputs, to the bit, the other run is this one. Nothing of the
run that is trained changes: what a stage could change is copied, and random generators are put back.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.loss import Experience, policy_loss
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.rollouts import Rollout, Segment

# compared by the loss and its gradient, which may differ where what the stage returns does not
_IN_LOSS = {"importance_ratio", "clipped_objective", "importance_weights", "kl", "aggregate"}
# another pass through the model, there and back, and copies of the model after each step
_TOO_DEAR = {"logprobs", "sync"}


class Shadow:
    """Compares the stages in which two runs differ, until they come to something else; `stages` are those to train with."""

    def __init__(self, own: Stages, other: Stages) -> None:
        others = {n: f for n, f in vars(other).items() if f is not getattr(own, n)}
        # where none of two alone moves a gradient, both together may
        several = len(_IN_LOSS & others.keys()) > 1
        left_out = _TOO_DEAR | _IN_LOSS if several else _TOO_DEAR
        self._own = own
        self._others = {name: f for name, f in others.items() if name not in left_out}
        self._twin: Optimizer | None = None
        self.parted: set[str] = set()
        # a KL may be in the reward, too
        called = self._others.keys() - (_IN_LOSS - {"kl"})
        beside: dict[str, Any] = {name: partial(self._call, name) for name in called}
        if "optimizer_step" in beside:
            beside["optimizer_step"] = self._step
        self.stages = replace(own, **beside)

    @property
    def compared(self) -> list[str]:
        return sorted(self._others)

    def _call(self, name: str, *given: Any) -> Any:
        """Return what the run's own implementation does, and compare it and what both leave of their arguments."""
        own, other = getattr(self._own, name), self._others[name]
        if name in self.parted:
            return own(*given)
        copies: list[Any] = []
        with suppress(Exception):  # without copies the other one raises, and cannot be compared
            copies = [_copied(each) for each in given]
        found = own(*given)
        self._compare(name, (found, [*given]), lambda: (other(*copies), copies))
        return found

    def _step(self, optimizer: Optimizer) -> None:
        """Move the weights, and compare them with those of a twin that is moved by the same gradients."""
        name = "optimizer_step"
        if name in self.parted:
            self._twin = None
            self._own.optimizer_step(optimizer)
            return
        twin = self._twin = self._twin or deepcopy(optimizer)
        for one, other in zip(optimizer.param_groups, twin.param_groups, strict=True):
            other["lr"] = one["lr"]
        for weight, copied in zip(_weights(optimizer), _weights(twin), strict=True):
            copied.grad = None if weight.grad is None else weight.grad.clone()
        self._own.optimizer_step(optimizer)
        moved = self._others[name]
        self._compare(name, _weights(optimizer), lambda: (moved(twin), _weights(twin))[1])

    def loss(
        self, logprobs: Tensor, held: Experience, settings: TrainingSettings, stages: Stages
    ) -> Tensor:
        """Return policy_loss, and compare it and its gradient. stages: those to train with."""
        found = policy_loss(logprobs, held, settings, self._own)
        names = (_IN_LOSS & self._others.keys()) - self.parted
        own = _with_gradient(found, logprobs) if names else ()
        for name in names:
            self._compare(name, own, partial(self._other_loss, name, logprobs, held, settings))
        return found

    def _other_loss(
        self, name: str, logprobs: Tensor, held: Experience, settings: TrainingSettings
    ) -> tuple[Tensor, ...]:
        leaf = logprobs.detach().clone().requires_grad_(logprobs.requires_grad)
        stages = self._own.with_fault(name, self._others[name])
        return _with_gradient(policy_loss(leaf, deepcopy(held), settings, stages), leaf)

    def _compare(self, name: str, found: object, other: Callable[[], object]) -> None:
        """Take note where the other implementation comes to something else, raises, or draws random numbers."""
        drawn = random.getstate(), torch.get_rng_state()
        same = False
        with suppress(Exception):
            same = _same(found, other())
        moved = random.getstate() != drawn[0] or not torch.equal(torch.get_rng_state(), drawn[1])
        if moved:
            random.setstate(drawn[0])
            torch.set_rng_state(drawn[1])
        if moved or not same:
            self.parted.add(name)


def _with_gradient(loss: Tensor, logprobs: Tensor) -> tuple[Tensor, ...]:
    """Return the loss and, where it has one, its gradient with respect to the log-probabilities."""
    if not loss.requires_grad:
        return (loss,)
    return loss, *torch.autograd.grad(loss, logprobs, retain_graph=True, materialize_grads=True)


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Environment):
        return copy(value)
    return deepcopy(value) if isinstance(value, Rollout | Segment | Policy) else value


def _same(one: Any, other: Any) -> bool:
    """Return whether both are the same to the bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one) == _bits(other)
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, Environment):
        return _same(vars(one), vars(other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and _same([*one.values()], [*other.values()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float):
        return one.hex() == float(other).hex()
    # on a policy nothing follows: its weights are saved last
    return isinstance(one, Policy) or bool(one == other)


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
