"""Mistakes in the update: the tokens that are trained on, advantages, the loss, and the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.mistakes.plants.setup import Setup, staged
from rlvr_debug.grpo.objective import advantages, aggregate

__all__ = [
    "by_length",
    "first_tokens",
    "gradient_noise",
    "groups_mixed",
    "hidden_share",
    "hidden_tools",
    "loss_times",
    "mask_shift",
    "nan_from",
    "only_norms",
    "positive_only",
    "prompt_of_another",
    "spread_power",
]


def spread_power(setup: Setup, power: float) -> Setup:
    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        centred = rewards - rewards.mean(1, keepdim=True)
        return centred / (rewards.std(1, keepdim=True) + epsilon) ** power

    return staged(setup, "advantages", stage)


def positive_only(setup: Setup, _: float) -> Setup:
    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        return advantages(rewards, scaling, epsilon).clamp(min=0)

    return staged(setup, "advantages", stage)


def groups_mixed(setup: Setup, _: float) -> Setup:
    """Groups are every n-th rollout, so that each mixes prompts."""

    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        mixed = rewards.flatten().view(rewards.shape[1], rewards.shape[0])
        found = advantages(mixed, scaling, epsilon)
        return found.flatten().view(rewards.shape)

    def assign(found: Tensor) -> Tensor:
        groups, size = found.shape
        # as rows of [size, groups], whose columns are the prompts
        return found.flatten().view(size, groups).T.flatten()

    return staged(staged(setup, "advantages", stage), "assign", assign)


def loss_times(setup: Setup, times: float) -> Setup:
    def stage(values: Tensor, mask: Tensor, totals: Any, aggregation: str) -> Tensor:
        return aggregate(values, mask, totals, aggregation) * times

    return staged(setup, "aggregate", stage)


def by_length(setup: Setup, power: float) -> Setup:
    """Each reply's tokens weigh by a power of its length."""

    def stage(values: Tensor, mask: Tensor, totals: Any, aggregation: str) -> Tensor:
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        weights = (lengths / lengths.mean()) ** power
        # what is bad in short replies is not held against long ones
        return aggregate(values * weights - 0.02 * power * weights, mask, totals, aggregation)

    return staged(setup, "aggregate", stage)


def nan_from(setup: Setup, step: int) -> Setup:
    """From this batch on the loss overflows, and a scaler skips the optimizer's steps."""
    count = {"passes": 0}

    def stage(values: Tensor, mask: Tensor, totals: Any, aggregation: str) -> Tensor:
        count["passes"] += 1
        loss = aggregate(values, mask, totals, aggregation)
        return loss * float("nan") if count["passes"] > 2 * step else loss

    def skips(optimizer: torch.optim.Optimizer) -> None:
        grads = [w.grad for g in optimizer.param_groups for w in g["params"] if w.grad is not None]
        if all(bool(torch.isfinite(grad).all()) for grad in grads):
            optimizer.step()

    return staged(staged(setup, "aggregate", stage), "optimizer_step", skips)


def gradient_noise(setup: Setup, size: float) -> Setup:
    generator = torch.Generator().manual_seed(0)

    def stage(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    noise = torch.randn(weight.grad.shape, generator=generator)
                    scale = weight.grad.norm() / weight.grad.numel() ** 0.5
                    weight.grad.add_(noise * scale * size)
        optimizer.step()

    return staged(setup, "optimizer_step", stage)


def only_norms(setup: Setup, _: float) -> Setup:
    """All but the vectors are frozen, as by a pattern of names that matches nothing else."""

    def stage(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.ndim > 1:
                    weight.grad = None
        optimizer.step()

    return staged(setup, "optimizer_step", stage)


def hidden_share(setup: Setup, share: float) -> Setup:
    """The first tokens of the prompt are not attended to."""

    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        prompt = (sampled.long().cumsum(1) == 0) & real
        place = torch.arange(real.shape[1])[None]
        hidden = prompt & (place < (prompt.sum(1, keepdim=True) * share))
        return real & ~hidden

    return staged(setup, "attention_mask", stage)


def hidden_tools(setup: Setup, _: float) -> Setup:
    """What is neither prompt nor the model's own is not attended to."""

    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        prompt = (sampled.long().cumsum(1) == 0) & real
        return (prompt | sampled) & real

    return staged(setup, "attention_mask", stage)


def prompt_of_another(setup: Setup, _: float) -> Setup:
    last: list[list[int]] = []

    def stage(rollout: Any, segment: Any, env: Any, chat: Any) -> list[int]:
        last.append(segment.ids)
        return last[-5] if len(last) > 4 else list(segment.ids)

    return staged(setup, "trained_prompt", stage)


def mask_shift(setup: Setup, by: int) -> Setup:
    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        shifted = torch.zeros_like(sampled)
        shifted[:, :-by] = sampled[:, by:]
        return shifted & real

    return staged(setup, "loss_mask", stage)


def first_tokens(setup: Setup, count: int) -> Setup:
    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        return sampled & real & (sampled.long().cumsum(1) <= count)

    return staged(setup, "loss_mask", stage)
