"""How far an optimizer step moved the weights that are trained, against how far AdamW should have.

What requires a gradient and what the optimizer holds do not matter: frozen weights count as ones that did not move.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.grpo.policy import Policy


@dataclass(frozen=True)
class ExpectedChange:
    """What is known before a step: every `stride`th weight, and the changes that AdamW makes of the clipped gradient there."""

    learning_rate: float
    clipped_norm: float
    stride: int
    before: dict[str, Tensor]
    changes: dict[str, Tensor]


@dataclass(frozen=True)
class WeightChange:
    """What a step did, as norms over all weights that are to move; `moved` is the share that is another number than before."""

    learning_rate: float
    clipped_norm: float
    update_norm: float
    expected_norm: float
    error_norm: float
    moved: float


# at most so many weights are copied: two copies of a large model would take the memory that it needs
_COPIED = 2**24


def _to_move(policy: Policy) -> dict[str, Tensor]:
    return {
        name: parameter
        for name, parameter in policy.model.named_parameters()
        if policy.adapter is None or ".lora_" in name
    }


@torch.no_grad()
def expected_change(policy: Policy, optimizer: torch.optim.Optimizer) -> ExpectedChange:
    """Return what the step should do, asked before it; a weight that the optimizer does not hold is at its first step."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    first = optimizer.param_groups[0]
    weights = _to_move(policy)
    stride = -(-sum(parameter.numel() for parameter in weights.values()) // _COPIED)
    expected, gradients = {}, []
    for name, parameter in weights.items():
        if parameter.grad is None:
            expected[name] = torch.zeros(())
            continue
        group = groups.get(id(parameter), first)
        state = {
            key: _some(value, stride) if isinstance(value, Tensor) and value.dim() else value
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        expected[name] = adamw_change(
            _some(parameter, stride).float(), _some(parameter.grad, stride).float(), state, group
        )
        gradients.append(parameter.grad)
    before = {name: _some(parameter, stride).clone() for name, parameter in weights.items()}
    return ExpectedChange(float(first["lr"]), _norm(gradients), stride, before, expected)


def _some(tensor: Tensor, stride: int) -> Tensor:
    """Return every `stride`th entry, and at least one."""
    return tensor.flatten()[::stride]


def adamw_change(
    weight: Tensor, gradient: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]
) -> Tensor:
    """Return what AdamW adds to a weight, of its moments before the step, `state` (arXiv 1711.05101, algorithm 2)."""
    beta1, beta2 = group["betas"]
    step = int(state.get("step", 0)) + 1
    first, second = (1 - beta1) * gradient, (1 - beta2) * gradient.square()
    if state:
        first += beta1 * state["exp_avg"]
        second += beta2 * state["exp_avg_sq"]
    spread = (second / (1 - beta2**step)).sqrt() + group["eps"]
    change: Tensor = -group["lr"] * (
        group["weight_decay"] * weight + first / (1 - beta1**step) / spread
    )
    return change


@torch.no_grad()
def weight_change(expected: ExpectedChange, policy: Policy) -> WeightChange:
    """Return what the step did to the policy's weights, against what was expected of it."""
    changes = {
        name: _some(p, expected.stride).float() - expected.before[name].float()
        for name, p in _to_move(policy).items()
    }
    scale = math.sqrt(expected.stride)
    moved = sum(int(change.count_nonzero()) for change in changes.values())
    return WeightChange(
        expected.learning_rate,
        expected.clipped_norm,
        scale * _norm(list(changes.values())),
        scale * _norm(list(expected.changes.values())),
        scale * _norm([change - expected.changes[name] for name, change in changes.items()]),
        moved / sum(change.numel() for change in changes.values()),
    )


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.float().norm()) ** 2 for tensor in tensors))


def change_metrics(changes: list[WeightChange]) -> dict[str, float]:
    """Return means over a batch's optimizer steps; ratios only where a change was expected."""
    expected = fmean(change.expected_norm for change in changes)
    update = fmean(change.update_norm for change in changes)
    relative = {}
    if expected:
        relative["weights/update_ratio"] = update / expected
        error = fmean(change.error_norm for change in changes)
        relative["weights/update_error"] = error / expected
    return {
        "learning_rate": changes[-1].learning_rate,
        "grad_norm/clipped": fmean(change.clipped_norm for change in changes),
        "weights/update_norm": update,
        "weights/expected_update_norm": expected,
        **relative,
        "weights/moved": fmean(change.moved for change in changes),
    }


@torch.no_grad()
def lora_norm(policy: Policy) -> float:
    """Return the Frobenius norm of all that the adapter adds to the weights, (alpha / r) B A each."""
    squared = 0.0
    for module in policy.model.modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        for name, scaling in module.scaling.items():
            a, b = module.lora_A[name].weight.double(), module.lora_B[name].weight.double()
            squared += scaling**2 * float(((b.T @ b) * (a @ a.T)).sum())
    return math.sqrt(squared)
