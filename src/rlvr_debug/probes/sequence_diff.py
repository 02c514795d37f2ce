"""Is the sequence that is trained on, token by token, the one that was sampled?"""

from __future__ import annotations

from rlvr_debug.alignment import edits
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.first_update import case_batch

__all__ = ["sequence_diff"]


def sequence_diff(subject: Subject) -> Measurement:
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
    return Measurement(
        probe="sequence-diff",
        measured={
            "share_of_rollouts": different / count,
            "tokens_missing": missing / count,
            "tokens_added": added / count,
        },
        bound="no rollout differs",
        reason="token-in, token-out: what was sampled is known exactly and need not be rebuilt",
        passed=different == 0,
    )
