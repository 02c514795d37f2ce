"""Are the tokens that are trained those that the model wrote, all of them and no others?"""

from __future__ import annotations

import torch

from rlvr_debug.diagnostics.tokens import ROLES, roles
from rlvr_debug.grpo.masks import without_truncated
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.first_update import case_batch

__all__ = ["token_roles"]


def token_roles(subject: Subject) -> Measurement:
    """Every token of the batch by its role, and what the loss counts of each."""
    batch = case_batch(subject)
    wanted = batch.sampled
    if subject.settings.mask_truncated_completions:
        cut = torch.tensor([r.outcome == "token_limit" for r in subject.rollouts])
        wanted = without_truncated(wanted, cut)
    of_role = roles(batch.sampled, batch.real)
    missing, added = int((wanted & ~batch.loss).sum()), int((batch.loss & ~wanted).sum())
    return Measurement(
        probe="token-roles",
        measured={
            **{f"tokens_{role}": int(of_role[role].sum()) for role in ROLES},
            **{f"trained_{role}": int((of_role[role] & batch.loss).sum()) for role in ROLES},
            "sampled_and_not_trained": missing,
            "trained_and_not_sampled": added,
        },
        bound="no token is trained that was not sampled, none sampled that is not trained, but for "
        "replies left out as a whole by mask_truncated_completions",
        reason="the policy gradient is over the policy's own actions: other tokens are imitated, and a "
        "token left out is not learned, the one that ends a turn for instance",
        passed=not missing and not added,
    )
