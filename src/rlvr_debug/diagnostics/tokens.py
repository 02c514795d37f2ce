"""Which tokens there are, by role, and which of them are trained on.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["ROLES", "roles", "token_metrics"]

ROLES = ("prompt", "assistant", "tool", "padding")


def roles(sampled: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Bool [B, T] for each of ROLES, every token in one of them.

    sampled: what the model wrote; real: not padding. A tool's turn is what follows a reply and is not
    one: generation prompt and all else that the chat template adds.
    """
    answered = sampled.cumsum(1) > 0
    return {
        "prompt": real & ~answered,
        "assistant": sampled,
        "tool": real & answered & ~sampled,
        "padding": ~real,
    }


def token_metrics(loss: Tensor, sampled: Tensor, real: Tensor) -> dict[str, int]:
    """loss: the tokens that the trainer's loss counts. bool [B, T] each."""
    return {
        "sampled_tokens": int(sampled.sum()),
        "trained_tokens": int(loss.sum()),
        **{
            f"trained_tokens/{role}": int((loss & mask).sum())
            for role, mask in roles(sampled, real).items()
        },
    }
