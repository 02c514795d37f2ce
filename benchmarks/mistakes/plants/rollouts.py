"""Mistakes in what is sampled: the tools' answers, the sampler, and the weights that it is given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.mistakes.plants.setup import Around, Setup, sampled, staged
from rlvr_debug.environments.base import Environment, ToolResult
from rlvr_debug.sampling.base import Sample

__all__ = [
    "penalised_sampler",
    "same_samples",
    "sampler_bits",
    "sync_every",
    "sync_noise",
    "sync_share",
    "tools_constant",
    "tools_empty",
    "tools_fail",
]


def _tools(setup: Setup, share: float, answer: ToolResult) -> Setup:
    """Some of the tools' answers are replaced by this one."""

    class Tools(Around):
        def call_tool(self, row: Any, call: Any) -> ToolResult:
            drawn = random.Random(f"{row.id} {call.arguments}").random()
            found: ToolResult = answer if drawn < share else self.inner.call_tool(row, call)
            return found

    return replace(setup, environment=cast(Environment, Tools(setup.environment)))


def tools_fail(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult("Error: connection refused", error="bad_arguments"))


def tools_empty(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult(""))


def tools_constant(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult("[1] Page: nothing was found for this query"))


def same_samples(setup: Setup, share: float) -> Setup:
    class Copying(Around):
        def sample(self, requests: Any, **told: Any) -> list[Sample]:
            found = self.inner.sample(requests, **told)
            first: dict[tuple[int, ...], Sample] = {}
            copied = []
            for request, sample in zip(requests, found, strict=True):
                one = first.setdefault(tuple(request.ids), sample)
                same = random.Random(f"{request.ids} {request.slot}").random() < share
                copied.append(one if same else sample)
            return copied

    return sampled(setup, Copying)


def penalised_sampler(setup: Setup, strength: float) -> Setup:
    """The engine reports log-probabilities after a penalty that the trainer does not know."""

    class Penalised(Around):
        def sample(self, requests: Any, **told: Any) -> list[Sample]:
            return [
                replace(
                    s,
                    logprobs=[
                        p * (1 + strength / 10) - strength / 50 * (i % 3)
                        for i, p in enumerate(s.logprobs)
                    ],
                )
                for s in self.inner.sample(requests, **told)
            ]

    return sampled(setup, Penalised)


def _followed(setup: Setup, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Setup:
    """The sampler is given weights that `change` made of the trainer's."""

    def stage(policy: Any, sampler: Any) -> None:
        sampler.load(change(policy.weights()))

    return staged(setup, "sync", stage)


def sampler_bits(setup: Setup, bits: int) -> Setup:
    def in_bits(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        def one(tensor: Tensor) -> Tensor:
            if tensor.ndim < 2:
                return tensor
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
            rounded: Tensor = (tensor / scale).round() * scale
            return rounded

        return {name: one(tensor) for name, tensor in weights.items()}

    class Few(Around):
        def begin(self, policy: Any, others: Any, step: int) -> None:
            self.inner.load(in_bits(policy.weights()))

    return sampled(_followed(setup, in_bits), Few)


def sync_every(setup: Setup, steps: int) -> Setup:
    count = {"calls": 0}

    def stage(policy: Any, sampler: Any) -> None:
        count["calls"] += 1
        if count["calls"] % steps == 0:
            sampler.follow(policy)

    return staged(setup, "sync", stage)


def sync_share(setup: Setup, share: float) -> Setup:
    first: dict[str, Tensor] = {}

    def part(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if not first:
            return weights
        sent = {n for n in weights if random.Random(n).random() < share}
        return {n: w if n in sent else first[n] for n, w in weights.items()}

    class Noted(Around):
        def begin(self, policy: Any, others: Any, step: int) -> None:
            first.update({n: w.clone() for n, w in policy.weights().items()})
            self.inner.begin(policy, others, step)

    return sampled(_followed(setup, part), Noted)


def sync_noise(setup: Setup, size: float) -> Setup:
    generator = torch.Generator().manual_seed(0)

    def spoiled(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = sorted(n for n, w in weights.items() if w.ndim > 1)[-1]
        noise = torch.randn(weights[name].shape, generator=generator)
        return {**weights, name: weights[name] + size * weights[name].std() * 10 * noise}

    return _followed(setup, spoiled)
