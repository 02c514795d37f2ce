"""Do the limits on tokens cut prompts or replies?"""

from __future__ import annotations

from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["limits"]

_NEAR = 10
_SHARE = 0.2


def limits(subject: Subject) -> Measurement:
    """Prompts against max_prompt_length, replies against the trainer's limit and the environment's."""
    limit = subject.settings.max_prompt_length
    prompts = [
        len(r.segments[0].ids) + r.prompt_cut
        for r in subject.rollouts[:: subject.settings.group_size]
    ]
    near = sum(limit > 0 and length >= limit - _NEAR for length in prompts) / len(prompts)
    trainers = subject.stages.max_new_tokens(subject.environment)
    replies = [len(s.ids) for r in subject.rollouts for s in r.segments if s.role == "assistant"]
    cut = sum(r.outcome == "token_limit" for r in subject.rollouts) / len(replies)
    return Measurement(
        probe="limits",
        measured={
            "prompt_limit": limit,
            "longest_prompt": max(prompts),
            "share_of_prompts_near_or_over": near,
            "reply_limit": trainers,
            "reply_limit_of_the_environment": subject.environment.max_new_tokens,
            "longest_reply": max(replies),
            "share_of_replies_cut": cut,
        },
        bound=f"at most {_SHARE:.0%} of rows within {_NEAR} tokens of the prompt limit or over it (0: "
        f"there is none); the reply limit not below the environment's; at most {_SHARE:.0%} of "
        "replies cut",
        reason="what is cut off cannot be read or answered: at a fifth of the rows it costs more than "
        "the gain that is looked for; under a lower limit than in evaluation, another task is trained",
        passed=near <= _SHARE and trainers >= subject.environment.max_new_tokens and cut <= _SHARE,
    )
