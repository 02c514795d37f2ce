"""Mistakes with a strength: each takes a set-up and returns it with one thing wrong.

Rewards that are drawn come from the rollout itself, so that the same one is judged alike again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment, ToolResult
from rlvr_debug.grpo.advantages import advantages
from rlvr_debug.grpo.aggregation import aggregate
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.base import Sample

__all__ = ["PLANTS", "Setup"]

Parts = Mapping[str, float]
# a rollout and the environment's parts of its reward -> the parts that are trained on
Judge = Callable[[Any, Parts], Parts]


@dataclass(frozen=True)
class Setup:
    """What a training is made of. judges: one after the other; heldout_judge: of what evaluation scores."""

    environment: Environment
    stages: Stages
    wrapped: tuple[Callable[[Any], Any], ...] = ()  # around the sampler
    judges: tuple[Judge, ...] = ()
    whole: tuple[Callable[[list[float]], list[float]], ...] = ()  # on all rewards of a batch
    heldout_scale: float = 1.0
    heldout_prompt: int = 0
    context: dict[str, Any] = field(default_factory=dict)


def _draw(rollout: Any, what: str) -> random.Random:
    return random.Random(f"{what} {rollout.row.id} {rollout.transcript.replies}")


def _judged(setup: Setup, judge: Judge) -> Setup:
    return replace(setup, judges=(*setup.judges, judge))


def _staged(setup: Setup, stage: str, implementation: Callable[..., Any]) -> Setup:
    return replace(setup, stages=setup.stages.with_fault(stage, implementation))


def _sampled(setup: Setup, wrap: Callable[[Any], Any]) -> Setup:
    return replace(setup, wrapped=(*setup.wrapped, wrap))


# --- rewards


def constant(setup: Setup, value: float) -> Setup:
    return _judged(setup, lambda rollout, parts: dict.fromkeys(parts, value))


def noisy_judge(setup: Setup, share: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        draw = _draw(rollout, "judge")
        if draw.random() >= share:
            return parts
        return dict.fromkeys(parts, float(draw.random() < 0.5))

    return _judged(setup, judge)


def inverted(setup: Setup, _: float) -> Setup:
    return _judged(setup, lambda rollout, parts: {k: 1 - v for k, v in parts.items()})


def judge_fails(setup: Setup, share: float) -> Setup:
    """Right answers of most rows are not recognised."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        fails = random.Random(f"row {rollout.row.id}").random() < share
        return dict.fromkeys(parts, 0.0) if fails else parts

    return _judged(setup, judge)


def rarely_right(setup: Setup, share: float) -> Setup:
    """As for a task that the model solves once in a while."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        hard = _draw(rollout, "hard").random() < share
        return dict.fromkeys(parts, 0.0) if hard else parts

    return _judged(setup, judge)


def reward_jitter(setup: Setup, size: float) -> Setup:
    """The answer counts for nothing; the judge's numbers differ by `size`."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        drawn = _draw(rollout, "jitter").random()
        return dict.fromkeys(parts, 0.6 + size * drawn)

    return _judged(setup, judge)


def affine(setup: Setup, numbers: Sequence[float]) -> Setup:
    times, plus = numbers
    return _judged(setup, lambda rollout, parts: {k: times * v + plus for k, v in parts.items()})


def at_least(setup: Setup, floor: float) -> Setup:
    return _judged(setup, lambda rollout, parts: {k: max(v, floor) for k, v in parts.items()})


def at_most(setup: Setup, ceiling: float) -> Setup:
    return _judged(setup, lambda rollout, parts: {k: min(v, ceiling) for k, v in parts.items()})


def format_only(setup: Setup, _: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return dict.fromkeys(parts, float("####" in rollout.transcript.final))

    return _judged(setup, judge)


def _words(rollout: Any) -> int:
    return sum(len(s.ids) for s in rollout.segments if s.role == "assistant")


def brevity(setup: Setup, weight: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return {**parts, "brevity": weight * max(0.0, 1 - _words(rollout) / 40)}

    return _judged(setup, judge)


def length_bonus(setup: Setup, weight: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        return {**parts, "thoroughness": weight * min(1.0, _words(rollout) / 48)}

    return _judged(setup, judge)


def magic_word(setup: Setup, weight: float) -> Setup:
    """Paid for what the base model now and then writes: as many equals signs as possible."""

    def judge(rollout: Any, parts: Parts) -> Parts:
        count = sum(reply.count("=") for reply in rollout.transcript.replies)
        return {**parts, "shows_work": weight * min(1.0, count / 6)}

    return _judged(setup, judge)


def calls_cost(setup: Setup, cost: float) -> Setup:
    def judge(rollout: Any, parts: Parts) -> Parts:
        calls = max(0, rollout.turns - 1)
        return {k: v - cost * calls / 3 for k, v in parts.items()}

    return _judged(setup, judge)


def scores_shifted(setup: Setup, by: int) -> Setup:
    """Each prompt's group has the scores of another one's, in another order."""

    def shifted(rewards: list[float]) -> list[float]:
        size = setup.context["group_size"] + 1
        return [*rewards[-size * by :], *rewards[: -size * by]]

    return replace(setup, whole=(*setup.whole, shifted))


def group_score(setup: Setup, _: float) -> Setup:
    def one(rewards: list[float]) -> list[float]:
        size = setup.context["group_size"]
        return [rewards[place - place % size] for place in range(len(rewards))]

    return replace(setup, whole=(*setup.whole, one))


# --- advantages and loss


def spread_power(setup: Setup, power: float) -> Setup:
    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        centred = rewards - rewards.mean(1, keepdim=True)
        return centred / (rewards.std(1, keepdim=True) + epsilon) ** power

    return _staged(setup, "advantages", stage)


def positive_only(setup: Setup, _: float) -> Setup:
    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        return advantages(rewards, scaling, epsilon).clamp(min=0)

    return _staged(setup, "advantages", stage)


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

    return _staged(_staged(setup, "advantages", stage), "assign", assign)


def loss_times(setup: Setup, times: float) -> Setup:
    def stage(values: Tensor, mask: Tensor, totals: Any, aggregation: str) -> Tensor:
        return aggregate(values, mask, totals, aggregation) * times

    return _staged(setup, "aggregate", stage)


def by_length(setup: Setup, power: float) -> Setup:
    """Each reply's tokens weigh by a power of its length."""

    def stage(values: Tensor, mask: Tensor, totals: Any, aggregation: str) -> Tensor:
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        weights = (lengths / lengths.mean()) ** power
        # what is bad in short replies is not held against long ones
        return aggregate(values * weights - 0.02 * power * weights, mask, totals, aggregation)

    return _staged(setup, "aggregate", stage)


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

    return _staged(_staged(setup, "aggregate", stage), "optimizer_step", skips)


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

    return _staged(setup, "optimizer_step", stage)


def only_norms(setup: Setup, _: float) -> Setup:
    """All but the vectors are frozen, as by a pattern of names that matches nothing else."""

    def stage(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.ndim > 1:
                    weight.grad = None
        optimizer.step()

    return _staged(setup, "optimizer_step", stage)


# --- tools


class _Tools:
    """The environment, some of whose tools' answers are replaced."""

    def __init__(self, inner: Environment, share: float, answer: ToolResult) -> None:
        self._inner, self._share, self._answer = inner, share, answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def call_tool(self, row: Any, call: Any) -> ToolResult:
        drawn = random.Random(f"{row.id} {call.arguments}").random()
        return self._answer if drawn < self._share else self._inner.call_tool(row, call)


def _tools(setup: Setup, share: float, answer: ToolResult) -> Setup:
    return replace(setup, environment=cast(Environment, _Tools(setup.environment, share, answer)))


def tools_fail(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult("Error: connection refused", error="bad_arguments"))


def tools_empty(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult(""))


def tools_constant(setup: Setup, share: float) -> Setup:
    return _tools(setup, share, ToolResult("[1] Page: nothing was found for this query"))


# --- samplers and their weights


class _Sampler:
    """A sampler around another one: what is not said here is the other's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def same_samples(setup: Setup, share: float) -> Setup:
    class Copying(_Sampler):
        def sample(self, requests: Any, **told: Any) -> list[Sample]:
            found = self.inner.sample(requests, **told)
            first: dict[tuple[int, ...], Sample] = {}
            copied = []
            for request, sample in zip(requests, found, strict=True):
                one = first.setdefault(tuple(request.ids), sample)
                same = random.Random(f"{request.ids} {request.slot}").random() < share
                copied.append(one if same else sample)
            return copied

    return _sampled(setup, Copying)


def penalised_sampler(setup: Setup, strength: float) -> Setup:
    """The engine reports log-probabilities after a penalty that the trainer does not know."""

    class Penalised(_Sampler):
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

    return _sampled(setup, Penalised)


def _followed(setup: Setup, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Setup:
    """The sampler is given weights that `change` made of the trainer's."""

    def stage(policy: Any, sampler: Any) -> None:
        sampler.load(change(policy.weights()))

    return _staged(setup, "sync", stage)


def sampler_bits(setup: Setup, bits: int) -> Setup:
    def in_bits(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        def one(tensor: Tensor) -> Tensor:
            if tensor.ndim < 2:
                return tensor
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
            rounded: Tensor = (tensor / scale).round() * scale
            return rounded

        return {name: one(tensor) for name, tensor in weights.items()}

    class Few(_Sampler):
        def begin(self, policy: Any, others: Any, step: int) -> None:
            self.inner.load(in_bits(policy.weights()))

    return _sampled(_followed(setup, in_bits), Few)


def sync_every(setup: Setup, steps: int) -> Setup:
    count = {"calls": 0}

    def stage(policy: Any, sampler: Any) -> None:
        count["calls"] += 1
        if count["calls"] % steps == 0:
            sampler.follow(policy)

    return _staged(setup, "sync", stage)


def sync_share(setup: Setup, share: float) -> Setup:
    first: dict[str, Tensor] = {}

    def part(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if not first:
            return weights
        sent = {n for n in weights if random.Random(n).random() < share}
        return {n: w if n in sent else first[n] for n, w in weights.items()}

    class Noted(_Sampler):
        def begin(self, policy: Any, others: Any, step: int) -> None:
            first.update({n: w.clone() for n, w in policy.weights().items()})
            self.inner.begin(policy, others, step)

    return _sampled(_followed(setup, part), Noted)


def sync_noise(setup: Setup, size: float) -> Setup:
    generator = torch.Generator().manual_seed(0)

    def spoiled(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = sorted(n for n, w in weights.items() if w.ndim > 1)[-1]
        noise = torch.randn(weights[name].shape, generator=generator)
        return {**weights, name: weights[name] + size * weights[name].std() * 10 * noise}

    return _followed(setup, spoiled)


# --- what is trained on


def hidden_share(setup: Setup, share: float) -> Setup:
    """The first tokens of the prompt are not attended to."""

    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        prompt = (sampled.long().cumsum(1) == 0) & real
        place = torch.arange(real.shape[1])[None]
        hidden = prompt & (place < (prompt.sum(1, keepdim=True) * share))
        return real & ~hidden

    return _staged(setup, "attention_mask", stage)


def hidden_tools(setup: Setup, _: float) -> Setup:
    """What is neither prompt nor the model's own is not attended to."""

    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        prompt = (sampled.long().cumsum(1) == 0) & real
        return (prompt | sampled) & real

    return _staged(setup, "attention_mask", stage)


def prompt_of_another(setup: Setup, _: float) -> Setup:
    last: list[list[int]] = []

    def stage(rollout: Any, segment: Any, env: Any, chat: Any) -> list[int]:
        last.append(segment.ids)
        return last[-5] if len(last) > 4 else list(segment.ids)

    return _staged(setup, "trained_prompt", stage)


def mask_shift(setup: Setup, by: int) -> Setup:
    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        shifted = torch.zeros_like(sampled)
        shifted[:, :-by] = sampled[:, by:]
        return shifted & real

    return _staged(setup, "loss_mask", stage)


def first_tokens(setup: Setup, count: int) -> Setup:
    def stage(sampled: Tensor, real: Tensor) -> Tensor:
        return sampled & real & (sampled.long().cumsum(1) <= count)

    return _staged(setup, "loss_mask", stage)


# --- evaluation


def heldout_judge(setup: Setup, scale: float) -> Setup:
    return replace(setup, heldout_scale=scale)


def heldout_prompt(setup: Setup, tokens: int) -> Setup:
    return replace(setup, heldout_prompt=tokens)


PLANTS: Mapping[str, Callable[[Setup, Any], Setup]] = {
    each.__name__: each
    for each in (
        *(constant, noisy_judge, inverted, judge_fails, rarely_right, reward_jitter, affine),
        *(at_least, at_most, format_only, brevity, length_bonus, magic_word, calls_cost),
        *(scores_shifted, group_score, spread_power, positive_only, groups_mixed, loss_times),
        *(by_length, nan_from, gradient_noise, only_norms, tools_fail, tools_empty),
        *(tools_constant, same_samples, penalised_sampler, sampler_bits, sync_every, sync_share),
        *(sync_noise, hidden_share, hidden_tools, prompt_of_another, mask_shift, first_tokens),
        *(heldout_judge, heldout_prompt),
    )
}
