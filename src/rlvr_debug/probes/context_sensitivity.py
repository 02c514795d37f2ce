"""Do the log-probabilities that are trained react to the prompt, and to what the tools returned?"""

from __future__ import annotations

import torch

from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["context_sensitivity"]

_FLOOR = 1e-4


def context_sensitivity(subject: Subject) -> Measurement:
    """Replace every token of the context by another one and look at the trained tokens."""
    batch = build_batch(subject.rollouts, subject.stages, subject.environment, subject.chat)
    temperature = subject.settings.temperature
    context = batch.real & ~batch.sampled
    first_sampled = batch.sampled.int().argmax(1, keepdim=True)
    prompt = context & (torch.arange(batch.ids.shape[1]) < first_sampled)
    # a permutation of the vocabulary without fixed points, so that every token changes
    other = (batch.ids + 1) % subject.model.config.vocab_size
    with torch.no_grad():
        before = token_logprobs(subject.model, batch.ids, batch.attention, batch.loss, temperature)
        changes = {}
        for name, where in (("prompt", prompt), ("tool_results", context & ~prompt)):
            ids = torch.where(where, other, batch.ids)
            after = token_logprobs(subject.model, ids, batch.attention, batch.loss, temperature)
            affected = batch.loss & where.any(1, keepdim=True)
            difference = (after - before).abs()[affected]
            changes[name] = float(difference.mean()) if affected.any() else float("nan")
    blind = [name for name, change in changes.items() if change < _FLOOR]
    return Measurement(
        probe="context-sensitivity",
        measured={f"mean_change_{name}": change for name, change in changes.items()},
        bound=f"mean change of a trained log-probability at least {_FLOOR} nats",
        reason="a policy that reads its context answers another one with other probabilities; "
        "float32 noise is below 1e-5",
        passed=not blind,
    )
