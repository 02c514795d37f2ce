"""A released trainer of verifiers on the default study's rows, model and settings.

This module runs in a release's environment only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiers.trainers import GRPOConfig

from lab.probes import Subject
from lab.probes.case import case_subject
from lab.releases.report import NAMED, ReleaseCase
from lab.releases.verifiers.trainer import VerifiersTrainer
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.models.places import base_model_of
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job

__all__ = ["release_case", "release_subject"]

_NOT_RUN = {
    "weights-move": "the optimizer is that of transformers' Trainer",
    "weight-sync": "weights are synced by NCCL to a vLLM server, which needs GPUs",
    "train-eval-equality": "evaluation is a client of a server, and weights are saved by transformers",
}
_MODULES = (
    "verifiers.trainers.grpo_trainer",
    "verifiers.trainers.async_batch_generator",
    "verifiers.envs.environment",
    "verifiers.envs.multiturn_env",
    "verifiers.utils.processing_utils",
    "verifiers.rubrics.rubric",
)


def release_case(scratch: Path, temperature: float) -> ReleaseCase:
    """Return the release on the control of the default study, sampled at `temperature`."""
    subject, trainer = release_subject(scratch, temperature)
    probes = {**NAMED, "second-iteration": lambda each: trainer.second_iteration(each.settings)}
    return ReleaseCase(subject, probes, _NOT_RUN, _MODULES)


def release_subject(scratch: Path, temperature: float) -> tuple[Subject, VerifiersTrainer]:
    """Return the control of the default study, with the release in the place of our trainer.

    The release's own defaults stand, but for temperature, and for what the study says of groups, clip, KL
    and scaling of advantages.
    """
    params = load_params(ROOT / "params.yaml")
    run = next(run for run in runs(params) if run.design == "control")
    run = replace(run, training=replace(run.training, temperature=temperature))
    prepare(run.environment, params.data_settings(run.environment), scratch)
    job = Job(
        run,
        params.settings(run.environment),
        ROOT / base_model_of(params, run.environment).folder,
        scratch / "train.jsonl",
        scratch,
    )
    subject = case_subject(job)
    settings = subject.settings
    config = GRPOConfig(
        output_dir=str(scratch),
        use_cpu=True,
        bf16=False,
        report_to=[],
        max_data_workers=1,
        per_device_train_batch_size=len(subject.rollouts),
        num_generations=settings.group_size,
        temperature=settings.temperature,
        max_tokens=subject.environment.max_new_tokens,
        epsilon=settings.clip,
        epsilon_high=settings.epsilon_high,
        beta=settings.kl_beta,
        scale_rewards=settings.scale_rewards == "group",
        max_grad_norm=settings.max_grad_norm,
        lr_scheduler_type=settings.lr_scheduler_type,
    )
    trainer = VerifiersTrainer(
        subject.policy.model, subject.rollouts, subject.environment, subject.chat, config
    )
    probed = replace(
        subject,
        policy=Policy(subject.policy.model, None, trainer.trainer.ref_model),
        stages=trainer.stages(),
        settings=replace(settings, **_told(config)),
        build=trainer.build,
        loss=trainer.loss,
    )
    return probed, trainer


def _told(config: Any) -> dict[str, Any]:
    """Return the release's own settings by our names."""
    return {
        "aggregation": config.loss_type,
        "max_prompt_length": config.max_prompt_length,
        "num_iterations": config.num_iterations,
    }
