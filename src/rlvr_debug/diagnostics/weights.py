"""How far an optimizer step moved the weights, against how far AdamW should have.

Which weights are to move is taken from what is trained (all of the model, or its adapter), not from
what requires a gradient or what the optimizer holds: frozen weights count as weights that did not move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.grpo.policy import Policy

__all__ = [
    "OptimizerStep",
    "adamw_change",
    "lora_norm",
    "meant_to_train",
    "optimizer_step",
    "snapshot",
    "step_metrics",
]


@dataclass(frozen=True)
class OptimizerStep:
    """Norms are over all weights that are to move: of the clipped gradient, of the change, of the
    expected change and of their difference. moved: the share of weights that are another number than
    before.
    """

    learning_rate: float
    clipped_norm: float
    update_norm: float
    expected_norm: float
    error_norm: float
    moved: float


def meant_to_train(policy: Policy) -> dict[str, Tensor]:
    return {
        name: parameter
        for name, parameter in policy.model.named_parameters()
        if policy.adapter is None or ".lora_" in name
    }


@torch.no_grad()
def snapshot(policy: Policy) -> dict[str, Tensor]:
    return {name: parameter.clone() for name, parameter in meant_to_train(policy).items()}


@torch.no_grad()
def optimizer_step(
    before: Mapping[str, Tensor], policy: Policy, optimizer: torch.optim.Optimizer
) -> OptimizerStep:
    """To be asked after optimizer.step() and before the learning rate's next value.

    before: the weights as `snapshot` gave them; the gradients are still there, clipped.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    squares = torch.zeros(4, dtype=torch.float64)
    moved = total = 0
    for name, parameter in meant_to_train(policy).items():
        old = before[name].float()
        change = parameter.float() - old
        group = groups.get(id(parameter), optimizer.param_groups[0])
        expected = adamw_change(old, parameter.grad, optimizer.state.get(parameter, {}), group)
        gradient = torch.zeros(()) if parameter.grad is None else parameter.grad.float()
        norms = [
            torch.linalg.vector_norm(x) for x in (gradient, change, expected, change - expected)
        ]
        squares += torch.stack(norms).double().square()
        moved += int(change.count_nonzero())
        total += change.numel()
    clipped, update, right, error = squares.sqrt().tolist()
    rate = float(optimizer.param_groups[0]["lr"])
    return OptimizerStep(rate, clipped, update, right, error, moved / total)


def adamw_change(
    before: Tensor, gradient: Tensor | None, state: Mapping[str, Any], group: Mapping[str, Any]
) -> Tensor:
    """What AdamW adds to a weight, from its state after the step. Loshchilov and Hutter, arXiv
    1711.05101, algorithm 2.

    A weight that the optimizer does not hold has no state: it counts as at its first step.
    """
    beta1, beta2 = group["betas"]
    step = int(state.get("step", 1))
    decay = -group["lr"] * group["weight_decay"] * before
    if state:
        first, second = state["exp_avg"].float(), state["exp_avg_sq"].float()
    elif gradient is not None:
        first, second = (1 - beta1) * gradient.float(), (1 - beta2) * gradient.float().square()
    else:
        return torch.zeros_like(before)
    spread = (second / (1 - beta2**step)).sqrt() + group["eps"]
    change: Tensor = decay - group["lr"] / (1 - beta1**step) * first / spread
    return change


def step_metrics(steps: list[OptimizerStep]) -> dict[str, float]:
    """Means over a batch's optimizer steps. Over an expected change of 0, nothing is defined."""
    expected = fmean(step.expected_norm for step in steps)
    update = fmean(step.update_norm for step in steps)
    relative = (
        {
            "weights/update_ratio": update / expected,
            "weights/update_error": fmean(step.error_norm for step in steps) / expected,
        }
        if expected
        else {}
    )
    return {
        "learning_rate": steps[-1].learning_rate,
        "grad_norm/clipped": fmean(step.clipped_norm for step in steps),
        "weights/update_norm": update,
        "weights/expected_update_norm": expected,
        **relative,
        "weights/moved": fmean(step.moved for step in steps),
    }


@torch.no_grad()
def lora_norm(policy: Policy) -> float:
    """Frobenius norm of all that the adapter adds to the model's weights, (alpha / r) B A each.

    ||B A||^2 is the sum over (B^T B) * (A A^T), which are r by r.
    """
    squared = 0.0
    for module in policy.model.modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        for name, scaling in module.scaling.items():
            a, b = module.lora_A[name].weight.double(), module.lora_B[name].weight.double()
            squared += scaling**2 * float(((b.T @ b) * (a @ a.T)).sum())
    return math.sqrt(squared)
