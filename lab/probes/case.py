"""The case of a study, run by our own trainer, as a subject of the probes."""

from __future__ import annotations

from lab.probes import Subject
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.rollouts import sample_groups
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.trainers.base import Job
from rlvr_debug.trainers.own.training import load_policy, training_of

__all__ = ["case_subject"]


def case_subject(job: Job) -> Subject:
    """Return the case's trainer before its first update, with rollouts of its first rows."""
    one_thread()
    training = training_of(job)
    settings, stages, chat = training.settings, training.stages, training.chat
    policy = build_policy(*load_policy(job.base_model, settings), settings, training.seed)
    sampler = base_sampler(job.base_model, chat)
    prompts = training.rows[: settings.prompts_per_step]
    rollouts = sample_groups(training, prompts, sampler, training.seed)
    return Subject(policy, sampler, stages, settings, training.environment, chat, rollouts)
