"""The probes on a released GRPOTrainer of TRL, on the study's gsm8k: one turn, as these releases have no tools.

Runs in a release's environment only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlvr_debug.arms import Run, runs
from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.models.places import base_model_of
from rlvr_debug.probes import PROBES, Measurement, Subject
from rlvr_debug.probes.first_update import contrast
from rlvr_debug.probes.loss_gradient import loss_gradient
from rlvr_debug.probes.release_report import ReleaseReport, files_of, installed
from rlvr_debug.probes.trained_ratio import trained_ratio
from rlvr_debug.probes.trl_release import TrlRelease
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.study import enough_rows, one_thread

__all__ = ["probe_trl_release"]

_ENVIRONMENT = "gsm8k"
_ASKED_TWICE = 4  # one question in so many
_TRANSFORMERS = {
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
_AGGREGATIONS = ("bnpo", "dapo", "dr_grpo", "grpo")
# until the loss has types: of the release in which the only one was another
_ONLY = {"0.14.0": "grpo", "0.15.2": "grpo", "0.16.1": "bnpo"}
# in two, micro-batches can come to be of equal length by chance
_CUTS = (2, 8)
_ERROR = 1e-3
_MODULES = (
    "trl.trainer.grpo_trainer",
    "trl.trainer.grpo_config",
    "trl.trainer.utils",
    "trl.data_utils",
)


def probe_trl_release(expected: str, out: Path, temperature: float = 1.0) -> ReleaseReport:
    """Step-0 checks of the release that is installed, also into a JSON file. Sampled at `temperature`.

    Raises InputError where that is another one.
    """
    found = installed("trl", expected)
    with tempfile.TemporaryDirectory() as scratch:
        case = _Case(found, Path(scratch), temperature)
        again = hasattr(case.release.config, "num_iterations")
        not_run = {
            **_TRANSFORMERS,
            **({} if case.release.separate else dict.fromkeys(_APART, _INSIDE)),
            **(
                {} if again else {"second-iteration": "it makes one update of a batch, and no more"}
            ),
        }
        probes: dict[str, Callable[[Subject], Measurement]] = {
            **{probe.__name__.replace("_", "-"): probe for probe in PROBES},
            "micro-batch-invariance": case.micro_batch_invariance,
            "trained-ratio": trained_ratio,
            "loss-gradient": partial(loss_gradient, aggregations=case.aggregations, updates=again),
            "second-iteration": lambda subject: case.release.second_iteration(subject.settings),
        }
        measurements = [
            probe(case.subject) for name, probe in probes.items() if name not in not_run
        ]
    report = ReleaseReport("trl", found, files_of("trl", _MODULES), measurements, not_run)
    report.write(out)
    return report


class _Case:
    """The rollouts of a step, and the release that trains on them.

    The release's own defaults stand, but for what the study says of groups, temperature, length of replies
    and KL.
    """

    def __init__(self, version: str, scratch: Path, temperature: float) -> None:
        one_thread()
        params = load_params(ROOT / "params.yaml")
        run = next(run for run in runs(params) if run.design == "control")
        settings = replace(run.training, temperature=temperature)
        self._run = replace(run, environment=_ENVIRONMENT, training=settings)
        prepare(_ENVIRONMENT, params["data"][_ENVIRONMENT], scratch)
        self._model = ROOT / base_model_of(params, _ENVIRONMENT).folder
        self._scratch = scratch
        self._environment = build_environment(_ENVIRONMENT, params["environments"][_ENVIRONMENT])
        self._chat = Chat(self._model)
        self._sampler = base_sampler(self._model, self._chat)
        self._rollouts = self._sampled(self._run)
        self.release = self._release()
        config = self.release.config
        own = getattr(config, "loss_type", None)
        self.aggregations = _AGGREGATIONS if own else (_ONLY[version],)
        self.subject = Subject(
            policy=Policy(self.release.trainer.model, None, self.release.trainer.ref_model),
            sampler=self._sampler,
            stages=self.release.stages(),
            settings=replace(
                settings,
                aggregation=own or _ONLY[version],
                max_prompt_length=config.max_prompt_length,
                num_iterations=getattr(config, "num_iterations", 1),
            ),
            environment=self._environment,
            chat=self._chat,
            rollouts=self.release.played,
            build=self.release.build,
            loss=self.release.loss,
        )

    def _sampled(self, run: Run) -> list[Rollout]:
        file = self._scratch / "train.jsonl"
        rows = enough_rows(read_rows(run.environment, file), run, file)
        # prompts of one length would have no padding, which a trainer can get wrong
        prompts = [
            row if i % _ASKED_TWICE else replace(row, question=f"{row.question} {row.question}")
            for i, row in enumerate(rows[: run.training.prompts_per_step])
        ]
        return rollout(
            [row for row in prompts for _ in range(run.training.group_size)],
            self._environment,
            self._chat,
            self._sampler,
            temperature=run.training.temperature,
            seed=run.seed,
        )

    def _release(self, **told: Any) -> TrlRelease:
        return TrlRelease(
            self._model,
            self._rollouts,
            self._environment,
            self._chat,
            self._run.training,
            self._scratch / "out",
            **told,
        )

    def micro_batch_invariance(self, subject: Subject) -> Measurement:
        """As the probe, but that the release's own training loop cuts the batch and adds up the gradient."""
        gains = contrast(subject)
        whole, *parts = (
            self._release(cut=cut, max_grad_norm=0.0).step_gradient(gains) for cut in (1, *_CUTS)
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
