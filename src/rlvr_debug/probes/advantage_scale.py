"""Do groups of nearly equal rewards dominate the gradient, and do advantages keep their bound?"""

from __future__ import annotations

import math

import torch

from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.first_update import advantages_of, case_batch, trained_scores

__all__ = ["SMALL_SPREAD", "advantage_scale"]

SMALL_SPREAD = 0.05
_SHARE = 0.5
_ROUNDING = 1e-5


def advantage_scale(subject: Subject) -> Measurement:
    """Squared gradient norm of each group alone, from the case's own stages."""
    settings = subject.settings
    size = settings.group_size
    scores, flat = trained_scores(subject)
    rewards, advantages = flat.view(-1, size), advantages_of(subject, scores, flat)
    batch = case_batch(subject)
    norms = []
    for group, gain in enumerate(advantages):
        rows = batch.rows(torch.arange(group * size, (group + 1) * size))
        logprobs = token_logprobs(
            subject.model, rows.ids, rows.attention, rows.loss, settings.temperature
        )
        objective = (logprobs * rows.loss * gain[:, None]).sum()
        gradients = torch.autograd.grad(objective, subject.policy.trained)
        norms.append(sum(float(g.square().sum()) for g in gradients))
    spread = rewards.std(1)
    small = sum(norm for norm, s in zip(norms, spread, strict=True) if s < SMALL_SPREAD)
    share = small / sum(norms) if sum(norms) else 0.0
    # one reward apart from equal ones comes closest to the bound, whatever the rollouts earned; most
    # levels are not exact in binary, so that the spread of equal rewards may not come out as 0
    apart = (torch.arange(10.0)[:, None] / 10).repeat(1, size)
    apart[:, 0] = 1.0
    parts = [dict.fromkeys(subject.environment.weights, r) for r in apart.flatten().tolist()]
    one_apart = advantages_of(subject, list(parts), apart.flatten())
    largest, possible = float(advantages.abs().max()), _possible(subject, len(flat))
    largest_apart, possible_apart = float(one_apart.abs().max()), _possible(subject, apart.numel())
    return Measurement(
        probe="advantage-scale",
        measured={
            "gradient_share_of_small_spread": share,
            "groups_of_small_spread": float((spread < SMALL_SPREAD).float().mean()),
            "largest_advantage": largest,
            "largest_possible": possible,
            "largest_advantage_of_one_apart": largest_apart,
            "largest_possible_of_one_apart": possible_apart,
        },
        bound=f"share of squared gradient norm from groups with std below {SMALL_SPREAD} under "
        f"{_SHARE}; no advantage above the largest possible, {possible:.2f}",
        reason="the bound, (G-1)/sqrt(G) in a group, holds for any rewards scaled by their unbiased "
        "std; a larger advantage is a bug and not a large one",
        passed=share < _SHARE
        and largest <= possible * (1 + _ROUNDING)
        and largest_apart <= possible_apart * (1 + _ROUNDING),
    )


def _possible(subject: Subject, rewards: int) -> float:
    """The largest advantage that any rewards can have, this many in all."""
    settings = subject.settings
    size = settings.group_size
    # scaled by the batch's spread, a group may stand out among all the rewards and not its own only
    over_batch = (
        settings.scale_rewards == "batch"
        or settings.multi_objective_aggregation == "normalize_then_sum"
    )
    compared = rewards if over_batch else size
    return math.sqrt((size - 1) * (compared - 1) / size)
