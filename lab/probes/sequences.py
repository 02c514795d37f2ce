"""Do the sequences that are trained on hold what was sampled, and does the model see all of it?"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.probes.base import Measurement, Subject, measurement
from lab.probes.first_update import case_batch
from rlvr_debug.grpo.sequences import without_truncated
from rlvr_debug.metrics.conversations import ROLES, roles
from rlvr_debug.sampling.alignment import edits

__all__ = ["context_sensitivity", "limits", "sequence_diff", "token_roles"]

_NEAR = 10
_SHARE = 0.2
_FLOOR = 1e-4


def limits(subject: Subject) -> Measurement:
    """Do the limits on tokens cut prompts or replies?

    Prompts against max_prompt_length, replies against the trainer's limit and the environment's, and whole
    conversations, with what the tools said, against max_context.
    """
    limit = subject.settings.max_prompt_length
    prompts = [
        len(r.segments[0].ids) + r.prompt_cut
        for r in subject.rollouts[:: subject.settings.group_size]
    ]
    near = sum(limit > 0 and length >= limit - _NEAR for length in prompts) / len(prompts)
    trainers = subject.stages.max_new_tokens(subject.environment)
    replies = [len(s.ids) for r in subject.rollouts for s in r.segments if s.role == "assistant"]
    cut = sum(r.outcome == "token_limit" for r in subject.rollouts) / len(replies)
    most = subject.environment.max_context
    full = sum(
        r.outcome == "context_limit" or len(r.ids) >= most - _NEAR for r in subject.rollouts
    ) / len(subject.rollouts)
    contexts = {
        "context_limit": most,
        "longest_context": max(len(r.ids) for r in subject.rollouts),
        "share_of_rollouts_near_or_over": full,
    }
    return measurement(
        "limits",
        {
            **(contexts if most else {}),
            "prompt_limit": limit,
            "longest_prompt": max(prompts),
            "share_of_prompts_near_or_over": near,
            "reply_limit": trainers,
            "reply_limit_of_the_environment": subject.environment.max_new_tokens,
            "longest_reply": max(replies),
            "share_of_replies_cut": cut,
        },
        near <= _SHARE
        and trainers >= subject.environment.max_new_tokens
        and cut <= _SHARE
        and not (most and full > _SHARE),
        share=_SHARE,
        near=_NEAR,
    )


def sequence_diff(subject: Subject) -> Measurement:
    """Is the sequence that is trained on, token by token, the one that was sampled?"""
    different, missing, added = 0, 0, 0
    batch = case_batch(subject)
    for rollout, ids, real in zip(subject.rollouts, batch.ids, batch.real, strict=True):
        trained = ids[real].tolist()
        if trained == rollout.ids:
            continue
        different += 1
        for kind, a, b, c, d in edits(rollout.ids, trained):
            if kind != "equal":
                missing += b - a
                added += d - c
    count = len(subject.rollouts)
    return measurement(
        "sequence-diff",
        {
            "share_of_rollouts": different / count,
            "tokens_missing": missing / count,
            "tokens_added": added / count,
        },
        different == 0,
    )


def token_roles(subject: Subject) -> Measurement:
    """Are the tokens that are trained those that the model wrote, all of them and no others?

    Every token of the batch by its role, and what the loss counts of each.
    """
    batch = case_batch(subject)
    wanted = batch.sampled
    if subject.settings.mask_truncated_completions:
        cut = torch.tensor([r.outcome == "token_limit" for r in subject.rollouts])
        wanted = without_truncated(wanted, cut)
    of_role = roles(batch.sampled, batch.real)
    missing, added = int((wanted & ~batch.loss).sum()), int((batch.loss & ~wanted).sum())
    return measurement(
        "token-roles",
        {
            **{f"tokens_{role}": int(of_role[role].sum()) for role in ROLES},
            **{f"trained_{role}": int((of_role[role] & batch.loss).sum()) for role in ROLES},
            "sampled_and_not_trained": missing,
            "trained_and_not_sampled": added,
        },
        not missing and not added,
    )


def context_sensitivity(subject: Subject) -> Measurement:
    """Do the log-probabilities that are trained react to the prompt, and to what the tools returned?

    Replace every token of the context by another one and look at the trained tokens after it.
    """
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
    return measurement(
        "context-sensitivity",
        {f"mean_change_{name}": change for name, change in changes.items()},
        "prompt" in changes and not blind,
        floor=_FLOOR,
    )
