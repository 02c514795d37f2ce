"""A released GRPOTrainer of TRL on the study's gsm8k: one turn, as these releases have no tools.

This module runs in a release's environment only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lab.probes import Measurement, Subject
from lab.probes.first_update import contrast
from lab.releases.loss_gradient import loss_gradient
from lab.releases.report import NAMED, Probe, ReleaseCase
from lab.releases.trl.batches import Step
from lab.releases.trl.trainer import TrlTrainer
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.models.places import base_model_of
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params

__all__ = ["release_case"]

_ENVIRONMENT = "gsm8k"
_ASKED_TWICE = 4  # one question in so many
_NOT_RUN = {
    "weights-move": "the optimizer is that of transformers' Trainer",
    "weight-sync": "weights are synced to vLLM, which needs GPUs",
    "train-eval-equality": "evaluation is the trainer's own step, and weights are saved by transformers",
}
_INSIDE = "its compute_loss makes the advantages itself, and the log-probabilities too: it can be given none"
# probes that need the loss, or what it is given, by itself
_APART = (
    "group-integrity",
    "advantage-scale",
    "kl-estimator",
    "kl-gradient",
    "gradient-size",
    "loss-gradient",
)
_ONCE = "it makes one update of a batch, and no more"
_AGGREGATIONS = ("bnpo", "dapo", "dr_grpo", "grpo")
# the only aggregation of the releases whose loss has no types
_ONLY: dict[str, Any] = {"0.14.0": "grpo", "0.15.2": "grpo", "0.16.1": "bnpo"}
# in two, micro-batches can come to be of equal length by chance
_CUTS = (2, 8)
_ERROR = 1e-3
_MODULES = (
    "trl.trainer.grpo_trainer",
    "trl.trainer.grpo_config",
    "trl.trainer.utils",
    "trl.data_utils",
)


def release_case(scratch: Path, temperature: float) -> ReleaseCase:
    """Return the release on rollouts of one step, sampled at `temperature`.

    The release's own defaults stand, but for temperature, and for what the study says of groups, length of
    replies and KL.
    """
    one_thread()
    params = load_params(ROOT / "params.yaml")
    run = next(run for run in runs(params) if run.design == "control")
    settings = replace(run.training, temperature=temperature)
    run = replace(run, environment=_ENVIRONMENT, training=settings)
    prepare(_ENVIRONMENT, params.data_settings(_ENVIRONMENT), scratch)
    model = ROOT / base_model_of(params, _ENVIRONMENT).folder
    environment = build_environment(_ENVIRONMENT, params.settings(_ENVIRONMENT))
    chat = Chat(model)
    sampler = base_sampler(model, chat)
    rows = read_rows(_ENVIRONMENT, scratch / "train.jsonl")
    # prompts of one length would have no padding, which a trainer can get wrong
    prompts = [
        row if i % _ASKED_TWICE else replace(row, question=f"{row.question} {row.question}")
        for i, row in enumerate(rows[: settings.prompts_per_step])
    ]
    rollouts = rollout(
        [row for row in prompts for _ in range(settings.group_size)],
        environment,
        chat,
        sampler,
        temperature=temperature,
        seed=run.seed,
    )
    step = Step(model, rollouts, environment, chat, settings)
    trainer = TrlTrainer(step, scratch / "out")
    own: Any = getattr(trainer.config, "loss_type", None)
    again = hasattr(trainer.config, "num_iterations")
    subject = Subject(
        policy=Policy(trainer.trainer.model, None, trainer.trainer.ref_model),
        sampler=sampler,
        stages=trainer.stages(),
        settings=replace(
            settings,
            aggregation=own or _ONLY[version("trl")],
            max_prompt_length=trainer.config.max_prompt_length,
            num_iterations=getattr(trainer.config, "num_iterations", 1),
        ),
        environment=environment,
        chat=chat,
        rollouts=trainer.played,
        build=trainer.build,
        loss=trainer.loss,
    )
    probes: dict[str, Probe] = {
        **NAMED,
        "micro-batch-invariance": partial(_micro_batch_invariance, step, scratch / "out"),
        "loss-gradient": partial(
            loss_gradient,
            aggregations=_AGGREGATIONS if own else (subject.settings.aggregation,),
            updates=again,
        ),
        "second-iteration": lambda each: trainer.second_iteration(each.settings),
    }
    not_run = {
        **_NOT_RUN,
        **({} if trainer.separate else dict.fromkeys(_APART, _INSIDE)),
        **({} if again else {"second-iteration": _ONCE}),
    }
    return ReleaseCase(subject, probes, not_run, _MODULES)


def _micro_batch_invariance(step: Step, out: Path, subject: Subject) -> Measurement:
    """Measure what the probe of this name does, but let the release's own training loop cut the batch
    and add up the gradient."""
    gains = contrast(subject)
    whole, *parts = (
        TrlTrainer(step, out, cut=cut, max_grad_norm=0.0).step_gradient(gains)
        for cut in (1, *_CUTS)
    )
    norm = float(whole.norm())
    errors = {
        f"relative_error_in_{cut}": float((part - whole).norm()) / norm
        for cut, part in zip(_CUTS, parts, strict=True)
    }
    return Measurement(
        probe="micro-batch-invariance",
        measured={"gradient_norm_of_the_whole": norm, **errors},
        bound=f"relative error of the gradient below {_ERROR}",
        reason="the loss is one of the whole batch, a sum over its sequences, so that its cuts only "
        "add up in another order: 1e-5 in float32; the denominators of micro-batches are others by far",
        passed=all(error < _ERROR for error in errors.values()),
    )
