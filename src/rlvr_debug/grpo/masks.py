"""Which tokens the loss counts, and which the policy may attend to.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["attention_mask", "loss_mask", "without_truncated"]


def loss_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """Which tokens the loss counts, [B, T]: those that the model wrote (`sampled`), no others.

    sampled, real (not padding): bool [B, T].
    """
    return sampled & real


def attention_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """What the policy may attend to, [B, T]: everything but padding. Arguments as in loss_mask."""
    return real


def without_truncated(mask: Tensor, truncated: Tensor) -> Tensor:
    """`mask` [B, T] without the sequences that the token limit cut, bool [B]. arXiv 2503.14476,
    section 3.4; TRL's mask_truncated_completions."""
    return mask & ~truncated[:, None]
