"""The probes on a released trainer, on the default study's rows, model and settings.

Runs in a release's environment only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiers.trainers import GRPOConfig

from rlvr_debug.arms import runs
from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import prepare
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.models.places import base_model_of
from rlvr_debug.probes import PROBES, Measurement, Subject
from rlvr_debug.probes.case import case_subject
from rlvr_debug.probes.loss_gradient import loss_gradient
from rlvr_debug.probes.release_report import ReleaseReport, files_of, installed
from rlvr_debug.probes.releases import Release
from rlvr_debug.probes.trained_ratio import trained_ratio

__all__ = ["NOT_RUN", "probe_release", "release_subject"]

# probe -> why none of the release's code would run in it
NOT_RUN = {
    "weights-move": "the optimizer is that of transformers' Trainer",
    "weight-sync": "weights are synced by NCCL to a vLLM server, which needs GPUs",
    "train-eval-equality": "evaluation is a client of a server, and weights are saved by transformers",
}
_PROBES: tuple[Callable[[Subject], Measurement], ...] = (
    *(probe for probe in PROBES if probe.__name__.replace("_", "-") not in NOT_RUN),
    trained_ratio,
    loss_gradient,
)
# whose functions the probes run, where the release has them
_MODULES = (
    "verifiers.trainers.grpo_trainer",
    "verifiers.trainers.async_batch_generator",
    "verifiers.envs.environment",
    "verifiers.envs.multiturn_env",
    "verifiers.utils.processing_utils",
    "verifiers.rubrics.rubric",
)


def probe_release(expected: str, out: Path) -> ReleaseReport:
    """Step-0 checks of the release that is installed, also into a JSON file.

    Raises InputError where that is another one.
    """
    found = installed("verifiers", expected)
    files = files_of("verifiers", _MODULES)
    with tempfile.TemporaryDirectory() as scratch:
        subject, release = release_subject(Path(scratch))
        measurements = [probe(subject) for probe in _PROBES]
        measurements.append(release.second_iteration(subject.settings))
    report = ReleaseReport("verifiers", found, files, measurements, NOT_RUN)
    report.write(out)
    return report


def release_subject(scratch: Path) -> tuple[Subject, Release]:
    """The control of the default study, with the release in the place of our trainer.

    The release's own defaults stand, but for what the study says of groups, temperature, clip, KL and
    scaling of advantages.
    """
    params = load_params(ROOT / "params.yaml")
    run = next(run for run in runs(params) if run.design == "control")
    prepare(run.environment, params["data"][run.environment], scratch)
    subject = case_subject(
        run,
        params["environments"][run.environment],
        ROOT / base_model_of(params, run.environment).folder,
        scratch / "train.jsonl",
    )
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
    release = Release(
        subject.policy.model, subject.rollouts, subject.environment, subject.chat, config
    )
    probed = replace(
        subject,
        policy=Policy(subject.policy.model, None, release.trainer.ref_model),
        stages=release.stages(),
        settings=replace(settings, **_told(config)),
        build=release.build,
        loss=release.loss,
    )
    return probed, release


def _told(config: Any) -> dict[str, Any]:
    """The release's own settings by our names."""
    return {
        "aggregation": config.loss_type,
        "max_prompt_length": config.max_prompt_length,
        "num_iterations": config.num_iterations,
    }
