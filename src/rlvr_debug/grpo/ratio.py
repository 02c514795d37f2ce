"""The policy against the one that sampled: ratio, clipping, and the sampler's own log-probabilities.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = ("token", "sequence")


def importance_ratio(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
    """Return policy over old policy, per token [B, T] or per sequence [B, 1].

    logprobs, old, mask: [B, T]. That of a sequence is the geometric mean over the tokens of `mask` (GSPO,
    arXiv 2507.18071).
    """
    difference = logprobs - old
    if level == "sequence":
        difference = (difference * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(1)
    return difference.exp()


def clipped_objective(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    """Return what is to be maximised, in the shape of `ratio`: [B, T] or [B, 1]. advantages: [B].

    The ratio is clipped to [1 - low, 1 + high] where that lowers the objective (arXiv 2402.03300,
    equation 3; two epsilons: arXiv 2503.14476, equation 10), and to delta, unless it is 0, where it
    would not be (arXiv 2505.07291, equation 1).
    """
    per_row = advantages[:, None]
    bounded = ratio.clamp(max=delta) if delta else ratio
    return torch.minimum(bounded * per_row, ratio.clamp(1 - low, 1 + high) * per_row)


def importance_weights(old: Tensor, sampler: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """Return min(p_old / p_sampler, cap) for sampled tokens, 1 for others; a constant, [B, T].

    old: the trainer's log-probabilities before the update; sampler: those of sampling. They should be
    equal and, in two implementations or precisions, are not. Yao et al., "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training" (2025); TRL's vLLM correction in its mode
    token_truncate.
    """
    return (old - sampler).where(sampled, 0.0).exp().clamp(max=cap)
