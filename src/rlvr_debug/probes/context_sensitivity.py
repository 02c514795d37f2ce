"""Do the log-probabilities that are trained react to the prompt, and to what the tools returned?"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["context_sensitivity"]

_FLOOR = 1e-4


def context_sensitivity(subject: Subject) -> Measurement:
    """Replace every token of the context by another one and look at the trained tokens after it."""
    batch = subject.build(subject.rollouts, subject.stages, subject.environment, subject.chat)

    def logprobs(ids: Tensor) -> Tensor:
        return subject.stages.logprobs(
            subject.model, ids, batch.attention, batch.loss, subject.settings.temperature
        )

    context = batch.real & ~batch.sampled
    first_sampled = batch.sampled.int().argmax(1, keepdim=True)
    prompt = context & (torch.arange(batch.ids.shape[1]) < first_sampled)
    # a reply's first token is predicted from the context token before it, which is read whatever
    # the mask hides: only the later ones tell (the first column is never sampled)
    later = batch.loss & batch.sampled & batch.sampled.roll(1, dims=1)
    # a permutation of the vocabulary without fixed points, so that every token changes
    other = (batch.ids + 1) % subject.model.config.vocab_size
    with torch.no_grad():
        before = logprobs(batch.ids)
        changes = {}
        for name, where in (("prompt", prompt), ("tool_results", context & ~prompt)):
            after = logprobs(torch.where(where, other, batch.ids))
            affected = later & (where.cumsum(1) > 0)
            if affected.any():
                changes[name] = float((after - before).abs()[affected].mean())
    blind = [name for name, change in changes.items() if not change >= _FLOOR]
    return Measurement(
        probe="context-sensitivity",
        measured={f"mean_change_{name}": change for name, change in changes.items()},
        bound=f"mean change of a trained log-probability, but for a reply's first, at least {_FLOOR} "
        "nats, for the prompt and, where tools were called, for their results",
        reason="a policy that reads its context answers another one with other probabilities; "
        "float32 noise is below 1e-5",
        passed="prompt" in changes and not blind,
    )
