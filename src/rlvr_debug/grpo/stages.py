"""The stages of GRPO, each one pure function, and the bundle of them that a trainer runs (docs/trainer.md).

A variant is another implementation of one stage (causes/); an intervention may swap the right one back. Axes: [B, T].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo import objective
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, Segment


def max_new_tokens(environment: Environment) -> int:
    """Return how many tokens a reply may have: as many as the environment says."""
    return environment.max_new_tokens


def trained_prompt(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    """Return the prompt's ids in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def trained_tool_turn(segment: Segment, chat: Chat) -> list[int]:
    """Return a tool turn's ids in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def loss_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """Return which tokens the loss counts, [B, T]: those that the model wrote (`sampled`), no others."""
    return sampled & real


def attention_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """Return what the policy may attend to, [B, T]: all but padding. Arguments are those of loss_mask."""
    return real


def score(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    """Return a rollout's reward parts: what the environment makes of the model's own words and calls."""
    return rollout.parts


def optimizer_step(optimizer: Optimizer) -> None:
    """Move the weights by the gradient that they hold."""
    optimizer.step()


def sync(policy: Policy, sampler: PolicySampler) -> None:
    """Give the sampler the trainer's weights."""
    sampler.follow(policy)


def saved_weights(policy: Policy) -> Mapping[str, Tensor]:
    """Return what is saved, and so evaluated: the trained weights, of an adapter its own."""
    adapter = policy.adapter_state()
    return adapter.weights if adapter else policy.weights()


@dataclass(frozen=True)
class Stages:
    """One implementation of each stage; the defaults are the right ones."""

    max_new_tokens: Callable[[Environment], int] = max_new_tokens
    trained_prompt: Callable[[Rollout, Segment, Environment, Chat], list[int]] = trained_prompt
    trained_tool_turn: Callable[[Segment, Chat], list[int]] = trained_tool_turn
    loss_mask: Callable[[Tensor, Tensor], Tensor] = loss_mask
    attention_mask: Callable[[Tensor, Tensor], Tensor] = attention_mask
    score: Callable[[Rollout, Environment], Mapping[str, float]] = score
    advantages: Callable[[Tensor, str, float], Tensor] = objective.advantages
    assign: Callable[[Tensor], Tensor] = objective.assign
    logprobs: Callable[..., Tensor] = token_logprobs
    importance_ratio: Callable[[Tensor, Tensor, Tensor, str], Tensor] = objective.importance_ratio
    clipped_objective: Callable[[Tensor, Tensor, float, float, float], Tensor] = (
        objective.clipped_objective
    )
    importance_weights: Callable[[Tensor, Tensor, Tensor, float], Tensor] = (
        objective.importance_weights
    )
    kl: Callable[[Tensor, Tensor, str], Tensor] = objective.kl_estimate
    aggregate: Callable[[Tensor, Tensor, objective.Totals, str], Tensor] = objective.aggregate
    optimizer_step: Callable[[Optimizer], None] = optimizer_step
    sync: Callable[[Policy, PolicySampler], None] = sync
    saved_weights: Callable[[Policy], Mapping[str, Tensor]] = saved_weights

    def with_fault(self, stage: str, implementation: Callable[..., object]) -> "Stages":
        """Return these stages with another implementation of one."""
        return replace(self, **{stage: implementation})  # type: ignore[arg-type]
