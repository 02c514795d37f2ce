"""What a batch of rollouts says, whoever trains on it: rewards by part and group, lengths, ends, turns, calls, tokens by role.

Axes: P prompts (groups), G rollouts of a group, K reward parts, B = P x G sequences, T tokens.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvr_debug.environments.base import CALL_ERRORS
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed from left to right."""
    return float(sum(values) / len(values))


def quantiles(name: str, values: Tensor, percents: Sequence[int]) -> dict[str, float]:
    """Return `name`/p01 and so on of values, [N], interpolated linearly; 0 is `name`/min, 100 `name`/max."""
    labels = {0: "min", 100: "max"}
    shares = values.new_tensor(percents) / 100
    found = values.quantile(shares).tolist()
    return {
        f"{name}/{labels.get(percent, f'p{percent:02d}')}": value
        for percent, value in zip(percents, found, strict=True)
    }


def group_metrics(rewards: Tensor, right: Tensor) -> dict[str, float]:
    """Return means, spreads, shares of dead groups and pass@k. rewards: [P, G]; right, which answers are: bool [P, G]."""
    size = rewards.shape[1]
    dead = rewards.amax(1) == rewards.amin(1)
    counts = right.sum(1).tolist()
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_std/within_groups": float(rewards.std(1).mean()),
        **({"reward_std/between_groups": float(rewards.mean(1).std())} if len(rewards) > 1 else {}),
        "frac_reward_zero_std": float(dead.float().mean()),
        "frac_reward_zero_std/all_right": float((dead & right.all(1)).float().mean()),
        "frac_reward_zero_std/all_wrong": float((dead & ~right.any(1)).float().mean()),
        **{
            f"pass@{k}": mean([pass_at_k(size, count, k) for count in counts])
            for k in sorted({2**i for i in range(size.bit_length())} | {size})
        },
    }


def pass_at_k(n: int, right: int, k: int) -> float:
    """Return the probability that k of n samples, `right` of them right, hold a right one (arXiv 2107.03374, equation 1)."""
    return 1 - comb(n - right, k) / comb(n, k)


def part_metrics(
    parts: Mapping[str, Sequence[float]], rewards: Sequence[float]
) -> dict[str, float]:
    """Return each part's mean and spread, and correlations of what varies. parts: by name, [B] each; rewards: [B]."""
    found = {}
    for name, values in parts.items():
        found[f"rewards/{name}/mean"] = mean(values)
        found[f"rewards/{name}/std"] = float(np.std(values, ddof=1))
    names = ["reward", *parts]
    matrix = correlations(np.array([rewards, *parts.values()]))
    for a, b in combinations(range(len(names)), 2):
        if not np.isnan(matrix[a, b]):
            found[f"reward_correlation/{names[a]}/{names[b]}"] = float(matrix[a, b])
    return found


def correlations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Pearson's correlation of each row with each, [K, K]; NaN where one is constant. values: [K, B]."""
    varies = values.max(1) > values.min(1)
    centred = values - values.mean(1, keepdims=True)
    norms = np.where(varies, np.linalg.norm(centred, axis=1), np.nan)
    unit = centred / norms[:, None]
    found: NDArray[np.float64] = np.clip(unit @ unit.T, -1.0, 1.0)
    return found


def advantage_metrics(advantages: Tensor, right: Tensor | None) -> dict[str, float]:
    """Return sizes and errors. advantages: [P, G]; right: those of the environment's rewards, where known."""
    wrong = {}
    if right is not None:
        wrong["advantages/error_abs_max"] = float((advantages - right).abs().max())
    return {
        "advantages/abs_max": float(advantages.abs().max()),
        "advantages/abs_mean": float(advantages.abs().mean()),
        "advantages/group_mean_abs_max": float(advantages.mean(1).abs().max()),
        **wrong,
    }


def batch_metrics(rollouts: Sequence[Rollout], success: str, size: int) -> dict[str, float]:
    """Return what the environment says of groups of `size` rollouts; success: the part that says which are right."""
    rewards = torch.tensor([rollout.reward for rollout in rollouts])
    right = torch.tensor([rollout.parts[success] >= 1 for rollout in rollouts])
    parts = {name: [r.parts[name] for r in rollouts] for name in rollouts[0].parts}
    return {
        **group_metrics(rewards.view(-1, size), right.view(-1, size)),
        **part_metrics(parts, rewards.tolist()),
        **conversation_metrics(rollouts),
    }


def conversation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return shares and means over the rollouts. Lengths count the tokens that the model wrote, in all turns."""
    calls = sum(rollout.transcript.calls for rollout in rollouts)
    errors = sum((rollout.call_errors for rollout in rollouts), Counter())
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    cut = [rollout.prompt_cut > 0 for rollout in rollouts]
    lengths = [sum(rollout.sampled) for rollout in rollouts]
    ended = [n for n, r in zip(lengths, rollouts, strict=True) if r.outcome != "token_limit"]
    return {
        **_lengths("length", lengths),
        **_lengths("terminated_length", ended or [0]),
        "completions/clipped_ratio": outcomes["token_limit"] / len(rollouts),
        "turns/mean": mean([rollout.turns for rollout in rollouts]),
        "turns/max": max(rollout.turns for rollout in rollouts),
        "tools/call_frequency": calls / len(rollouts),
        "tools/failure_frequency": errors.total() / max(calls, 1),
        **{f"tools/failures/{kind}": errors[kind] / max(calls, 1) for kind in CALL_ERRORS},
        **{f"outcomes/{name}": outcomes[name] / len(rollouts) for name in sorted(outcomes)},
        **({"prompts/clipped_ratio": mean(cut)} if any(cut) else {}),
    }


def _lengths(name: str, lengths: Sequence[int]) -> dict[str, float]:
    return {
        f"completions/mean_{name}": mean(lengths),
        f"completions/min_{name}": min(lengths),
        f"completions/max_{name}": max(lengths),
    }


def roles(sampled: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return a mask for each role and for padding, bool [B, T]: a tool's turn is all after a reply that was not sampled."""
    answered = sampled.cumsum(1) > 0
    return {
        "prompt": real & ~answered,
        "assistant": sampled,
        "tool": real & answered & ~sampled,
        "padding": ~real,
    }


def token_metrics(loss: Tensor, sampled: Tensor, real: Tensor) -> dict[str, int]:
    """Return counts of tokens. loss: those that the trainer's loss counts. bool [B, T] each."""
    return {
        "sampled_tokens": int(sampled.sum()),
        "trained_tokens": int(loss.sum()),
        **{
            f"trained_tokens/{role}": int((loss & mask).sum())
            for role, mask in roles(sampled, real).items()
        },
    }


def as_sampled(rollout: Rollout, sampler: list[float | None], chat: Chat) -> dict[str, Any]:
    """Return how the rollout went and its sequence. sampler: a log-probability or None per token."""
    return {
        "outcome": rollout.outcome,
        "turns": rollout.turns,
        "call_errors": dict(rollout.call_errors),
        "prompt_cut": rollout.prompt_cut,
        "sampled": {
            "ids": rollout.ids,
            "text": token_texts(rollout.ids, chat),
            "role": "".join(segment.role[0] * len(segment.ids) for segment in rollout.segments),
            "sampler": sampler,
        },
    }


def token_texts(ids: list[int], chat: Chat) -> list[str]:
    texts = {token: chat.tokenizer.decode([token]) for token in set(ids)}
    return [texts[token] for token in ids]
