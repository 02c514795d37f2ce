"""The log-probabilities that a loss reads of a forward pass of its own, read off its gradient by the logits."""

from collections.abc import Iterable

import torch
from torch import Tensor

_NUMBERS = 2**22  # logits at a time
_TINY = torch.finfo(torch.float64).tiny
_SUMMED = 1e-10  # of the gradient's square
_UNDERFLOWS = 1e-30  # what float32 would have of the gradient of a token that is that certain


def read_off(
    logits: Tensor, gradient: Tensor, ids: Tensor, heats: Iterable[float]
) -> tuple[Tensor, Tensor] | None:
    """Return the log-probabilities that a loss reads of logits, and its gradient with respect to them, both [b, C].

    gradient: of the loss with respect to the logits, both [b, C, V]; ids: the chosen tokens, [b, C]. heats: temperatures to be
    tried. A loss that reads nothing but log-probabilities of softmax(logits / heat) has the gradient g (1 - p) / heat at the
    chosen token and -g p / heat at the others, where g is its gradient with respect to the log-probability. Returns None
    where no heat has such a g: the loss reads something else, entropies say.
    """
    tried = [_fitted(logits, gradient, ids, heat) for heat in dict.fromkeys(heats)]
    logprobs, found, rest = min(tried, key=lambda each: each[2])
    # one rounding of the gradient itself; in float32 rather that of what probabilities are summed from
    return (logprobs, found) if rest <= max(torch.finfo(gradient.dtype).eps ** 2, _SUMMED) else None


def _fitted(
    logits: Tensor, gradient: Tensor, ids: Tensor, heat: float
) -> tuple[Tensor, Tensor, float]:
    """Return log-probabilities, the gradients by them that fit best, and which share of the gradient's square these leave."""
    size = logits.shape[-1]
    flat = (each.reshape(-1, each.shape[-1]) for each in (logits, gradient, ids[..., None]))
    found, left, whole = [], 0.0, 0.0
    for own, back, token in zip(
        *(torch.split(e, max(1, _NUMBERS // size)) for e in flat), strict=True
    ):
        logs = (own.float() / heat).double().log_softmax(-1)  # divided in float32, as losses do
        p, got = logs.exp(), back.double() * heat
        chosen, likely, at_it = (each.gather(1, token) for each in (logs, p, got))
        p, got = p.scatter(1, token, 0.0), got.scatter(1, token, 0.0)
        fit = -(got * p).sum(-1, keepdim=True) / p.square().sum(-1, keepdim=True).clamp(min=_TINY)
        # the chosen token's gradient alone is more exact, unless 1 - p is a difference of near numbers
        direct = at_it / (1 - likely).clamp(min=_TINY)
        left += float((got + fit * p).square().sum())
        left += float((at_it - fit * (1 - likely)).square().sum())
        left = left if float(p.sum(-1).min()) > _UNDERFLOWS else torch.inf
        whole += float(got.square().sum() + at_it.square().sum())
        found.append(torch.cat([chosen, torch.where(likely < 0.5, direct, fit)], 1))
    logprobs, grads = (each.reshape(ids.shape) for each in torch.cat(found).unbind(1))
    return logprobs.float(), grads.to(gradient.dtype), left / (whole or 1.0)
