"""limits: what limits on tokens cut of prompts, replies and conversations."""

from __future__ import annotations

from collections.abc import Iterator

from rlvr_debug.replay.consequences.base import Consequence, consequence
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import Rollout, rollouts

LIMITS = "limits"
_NEAR = 10  # tokens
_SHARE = 0.2


def limits(record: Record) -> Consequence | None:
    """Measure shares that limits cut; None where no call of the sampler was seen."""
    settings, calls = record.settings, [g.calls for g in record.generations if g.calls]
    if not calls:
        return None
    prompts = [len(prompt) for first, *_ in calls for prompt in first.prompts]
    outputs = [output for each in calls for call in each for output in call.outputs if output]
    ends = {*settings.eos_ids, settings.pad_id}
    cut = sum(output[-1] not in ends for output in outputs) if settings.eos_ids else 0
    found = list(_rollouts(record))
    lengths = [len(each.ids) for each in found]
    most = settings.cut_at or 0
    full = sum(len(each.completion) >= most > 0 for each in found) / max(len(found), 1)
    shares = {
        "prompts": _near(prompts, settings.max_prompt_length),
        "conversations": _near(lengths, settings.max_context),
        "completions": full,
        "replies": cut / max(len(outputs), 1),
        "masked": _masked(record),
        "calls": _unanswered(record),
    }
    said = {
        "prompts": f"{shares['prompts']:.0%} of the prompts fill their limit of {settings.max_prompt_length} tokens",
        "conversations": f"{shares['conversations']:.0%} of the conversations fill their limit of "
        f"{settings.max_context} tokens",
        "completions": f"{full:.0%} of the completions fill their limit of {most} tokens",
        "calls": f"{shares['calls']:.0%} of the rollouts end in a call of a tool that is not answered: a limit leaves no "
        "room for it",
        "masked": f"{shares['masked']:.0%} of the rollouts have no token that the loss counts",
        "replies": f"{shares['replies']:.0%} of the replies do not end by themselves: a limit cuts them",
    }
    measured = {
        "prompt_limit": settings.max_prompt_length,
        "longest_prompt": max(prompts, default=0),
        "share_of_prompts_near_or_over": shares["prompts"],
        "completion_limit": most,
        "share_of_completions_cut": shares["completions"],
        "share_of_rollouts_that_end_in_a_call": shares["calls"],
        "longest_reply": max(map(len, outputs), default=0),
        "share_of_replies_cut": shares["replies"],
        "share_of_rollouts_masked": shares["masked"],
    }
    if settings.max_context:
        measured |= {
            "context_limit": settings.max_context,
            "longest_context": max(lengths, default=0),
            "share_of_rollouts_near_or_over": shares["conversations"],
        }
    over = [said[name] for name, share in shares.items() if share > _SHARE]
    return consequence(LIMITS, measured, not over, "; ".join(over))


def _near(lengths: list[int], limit: int) -> float:
    """Return the share of lengths that reach the limit, or nearly; 0: there is none."""
    near = sum(limit > 0 and length >= limit - _NEAR for length in lengths)
    return near / max(len(lengths), 1)


def _masked(record: Record) -> float:
    """Return the share of rollouts of which the loss counts no token."""
    masks = [g.batch.loss_mask for g in record.generations if g.batch is not None]
    counted = [row for mask in masks if mask.numel() for row in mask.any(1).tolist()]
    return counted.count(False) / max(len(counted), 1)


def _rollouts(record: Record) -> Iterator[Rollout]:
    for generation in record.generations:
        try:
            yield from rollouts(generation, record.settings)
        except NotSeen:
            continue


def _unanswered(record: Record) -> float:
    """Return the share of rollouts whose last message calls a tool."""
    ends = [each[-1] for g in record.generations for each in g.messages or () if each]
    return sum(bool(end.get("tool_calls")) for end in ends) / max(len(ends), 1)
