"""Is each group of one prompt, and does each sequence get its own advantage?

Axes: P prompts (groups), G rollouts per group, B = P x G sequences.
"""

from __future__ import annotations

import torch

from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.first_update import advantages_of, trained_scores

__all__ = ["group_integrity"]

_MEAN = 1e-3


def group_integrity(subject: Subject) -> Measurement:
    size = subject.settings.group_size
    scores, rewards = trained_scores(subject)
    advantages = advantages_of(subject, scores, rewards)
    assigned = subject.stages.assign(advantages).view(-1, size)
    # equal advantages hide a wrong order, and numbers in order do not
    marks = torch.arange(float(len(rewards)))
    moved = float((subject.stages.assign(marks.view(-1, size)) != marks).float().mean())
    rollouts = subject.rollouts
    groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    mixed = sum(len({(r.row.id, *r.segments[0].ids) for r in group}) > 1 for group in groups)
    ids = {group[0].row.id for group in groups}
    by_group = rewards.view(-1, size)
    mean = float(assigned.mean(1).abs().max())
    return Measurement(
        probe="group-integrity",
        measured={
            "groups": len(groups),
            "groups_of_several_prompts": mixed,
            "groups_of_a_prompt_that_another_has": len(groups) - len(ids),
            "largest_group_mean_of_advantages": mean,
            "share_with_the_advantage_of_another": moved,
            "share_of_dead_groups": float((by_group.amax(1) == by_group.amin(1)).float().mean()),
            "share_of_duplicate_rollouts": 1
            - sum(len({tuple(r.ids) for r in group}) for group in groups) / len(rollouts),
        },
        bound=f"one prompt per group and one group per prompt; group means of advantages below {_MEAN} "
        "in size; no sequence has the advantage of another",
        reason="the group's mean is the baseline, so that its advantages sum to 0, to float32 rounding, "
        "however they are scaled; dead groups and duplicates cost samples and are no bug",
        passed=not mixed and len(ids) == len(groups) and mean < _MEAN and not moved,
    )
