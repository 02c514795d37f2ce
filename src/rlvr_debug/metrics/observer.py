"""The observer that records a run: a row of metrics, seconds by stage and some rollouts of each step (docs/diagnostics.md).

Metrics are computed from what was sampled (the environment's own masks and rewards, the sampler's log-probabilities) and
in the right formulas, so that a faulty stage cannot hide itself.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.loss import Experience, without_truncated
from rlvr_debug.grpo.objective import advantages, batch_advantages
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import Observer, Progress, Step, TrainerState
from rlvr_debug.metrics import weights
from rlvr_debug.metrics.logprobs import (
    clip_metrics,
    gradient_error,
    gradient_metrics,
    kl_metrics,
    loss_terms,
    ratio_metrics,
    sampler_metrics,
)
from rlvr_debug.metrics.rollouts import (
    advantage_metrics,
    as_sampled,
    conversation_metrics,
    group_metrics,
    part_metrics,
    roles,
    token_metrics,
    token_texts,
)
from rlvr_debug.sampling.rollouts import Rollout


class RunObserver(Observer):
    """Record what docs/diagnostics.md says. `log` takes each row of metrics as it comes."""

    def __init__(
        self,
        settings: DiagnosticSettings,
        log: Callable[[Mapping[str, Any]], None] = lambda row: None,
    ) -> None:
        self._settings, self._log = settings, log

    def begin_step(self, state: TrainerState) -> None:
        self._served = state.sampler.served
        self._expected: weights.ExpectedChange | None = None
        self._changes: list[weights.WeightChange] = []
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_stage(self, stage: str) -> None:
        """Book the seconds since the last call on this stage."""
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def before_optimizer_step(self, policy: Policy, optimizer: Optimizer) -> None:
        self.end_stage("update")
        self._expected = None if policy.sharded else weights.expected_change(policy, optimizer)
        self.end_stage("diagnostics")

    def after_optimizer_step(self, policy: Policy) -> None:
        self.end_stage("update")
        if self._expected is not None:
            self._changes.append(weights.weight_change(self._expected, policy))
            self._expected = None  # it is a copy of the weights
        self.end_stage("diagnostics")

    def end_step(self, step: Step) -> Progress:
        row = {"step": step.number, **_step_metrics(step, self._changes)}
        if self._settings.debug:
            row |= debug_metrics(step)
        kept = []
        if self._settings.keeps_rollouts_of(step.number):
            kept = rollout_records(step, self._settings.rollouts_kept, self._served)
        self.end_stage("diagnostics")
        self._log(row)
        return Progress([row], [{"step": step.number, **self._seconds}], kept)


def _step_metrics(step: Step, changes: list[weights.WeightChange]) -> dict[str, Any]:
    """Return the step's row but for its number. changes: of each optimizer step, none of a sharded model."""
    rollouts, batch, environment = step.rollouts, step.experience, step.training.environment
    trained = batch.advantages.view(-1, step.training.settings.group_size)
    rewards = torch.tensor([rollout.reward for rollout in rollouts]).view(trained.shape)
    solved = torch.tensor([r.parts[environment.success] >= 1 for r in rollouts])
    parts = {name: [r.parts[name] for r in rollouts] for name in rollouts[0].parts}
    settings, right = step.training.settings, None
    # of a KL in the reward only the trainer knows
    if not (settings.kl_beta and settings.kl_place == "reward"):
        scores = [rollout.parts for rollout in rollouts]
        given = (scores, rewards.flatten(), environment.weights)
        right = batch_advantages(*given, settings, advantages)
    return {
        **group_metrics(rewards, solved.view(trained.shape)),
        **part_metrics(parts, [rollout.reward for rollout in rollouts]),
        **advantage_metrics(trained, right),
        **conversation_metrics(rollouts),
        **token_metrics(batch.loss, batch.sampled, batch.real),
        **_logprob_metrics(step),
        **_update_metrics(step, changes, rewards.std(1), right),
        **({} if step.sync_gap is None else {"sync_gap": step.sync_gap}),
    }


def _logprob_metrics(step: Step) -> dict[str, float]:
    settings, batch = step.training.settings, step.experience
    old, sampled = step.update.logprobs, batch.sampled
    found = sampler_metrics(old[sampled], batch.sampler[sampled])
    if step.reference is not None:
        found |= kl_metrics(old[sampled], step.reference[sampled], settings.kl_estimator)
    if passes := step.update.passes:
        clip = (settings.clip, settings.epsilon_high)
        found |= ratio_metrics(passes[-1][sampled], old[sampled])
        found |= clip_metrics(
            passes, old, sampled, batch.advantages, clip, settings.importance_sampling_level
        )
    return found


def _update_metrics(
    step: Step, changes: list[weights.WeightChange], group_std: Tensor, right: Tensor | None
) -> dict[str, float]:
    """Return what only the update knows, as means over its optimizer steps. group_std: [P]; right: advantages, [P, G]."""
    update, settings = step.update, step.training.settings
    if not update.losses:
        return {"loss": 0.0, "grad_norm": 0.0, "skipped_updates": settings.num_iterations}
    moved = {}
    if changes:
        moved = weights.change_metrics(changes)
        if step.policy.adapter is not None:
            moved["lora/norm"] = weights.lora_norm(step.policy)
    logprobs, stages = update.logprobs, step.training.stages
    terms = loss_terms(logprobs, step.experience, settings, stages, step.training.loss_of)
    right_terms = loss_terms(logprobs, _right_experience(step, right), settings, Stages())
    return {
        "loss": fmean(update.losses),
        "grad_norm": fmean(update.grad_norms),
        **moved,
        **gradient_metrics(terms, group_std),
        **gradient_error(terms, right_terms),
    }


def _right_experience(step: Step, right: Tensor | None) -> Experience:
    """Return what the loss should have been given. right: the right advantages, [P, G]."""
    given, mask = step.experience, step.experience.sampled
    if step.training.settings.mask_truncated_completions:
        mask = without_truncated(mask, step.rollouts)
    totals = replace(given.totals, tokens=int(mask.sum()))
    gains = given.advantages if right is None else right.flatten()
    return replace(given, loss=mask, advantages=gains, totals=totals)


_DIGITS = 6  # of a rollout's log-probabilities and advantages
_NEAR = 10  # tokens from the limit that count as at it


def debug_metrics(step: Step) -> dict[str, float]:
    """Return debug/* of the step, before its update; the KL's and the reference's where there is one."""
    settings, batch = step.training.settings, step.experience
    rewards = torch.tensor([rollout.reward for rollout in step.rollouts])
    limit = settings.max_prompt_length
    prompts = [len(r.segments[0].ids) + r.prompt_cut for r in step.rollouts]
    near = sum(limit > 0 and length >= limit - _NEAR for length in prompts)
    lengths = batch.real.sum(1)
    counted = batch.loss & batch.sampled
    found = {
        "reward_std": float(rewards.view(-1, settings.group_size).std(1).mean()),
        "advantage_max": float(batch.advantages.abs().max()),
        "advantage_mean": float(batch.advantages.abs().mean()),
        "context_length_mean": float(lengths.float().mean()),
        "context_length_max": int(lengths.max()),
        "context_length_truncated": near,
        "context_length_truncation_rate": near / len(prompts),
        "active_tokens_count": int(batch.loss.sum()),
        "total_tokens_count": batch.loss.numel(),
        **{
            f"tokens/{role}": int(mask.sum())
            for role, mask in roles(batch.sampled, batch.real).items()
        },
    }
    if counted.any():
        found["policy_logp_mean"] = float(step.update.logprobs[counted].mean())
    if step.reference is not None and counted.any():
        logprobs, reference = step.update.logprobs[counted], step.reference[counted]
        kl = step.training.stages.kl(logprobs, reference, settings.kl_estimator)
        found["ref_logp_mean"] = float(reference.mean())
        found |= {f"kl_{name}": float(getattr(kl, name)()) for name in ("mean", "max", "min")}
    return {f"debug/{name}": value for name, value in found.items()}


# accelerate's names, which are also those of the packages
_PACKAGES = ("tensorboard", "wandb")


@contextmanager
def open_trackers(
    names: Sequence[str], folder: Path, run_name: str, config: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that logs one row at its step, below `folder`; what Weights & Biases wrote, `wandb sync` uploads."""
    for name in names:
        if name in _PACKAGES and find_spec(name) is None:
            raise InputError(
                f"diagnostics.trackers names {name}, and the package is not installed: "
                f"pip install {name}"
            )
    trackers = [_tracker(name, folder, run_name) for name in names]
    for tracker in trackers:
        tracker.start()
        tracker.store_init_configuration(dict(config))

    def log(row: Mapping[str, Any]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        for tracker in trackers:
            tracker.log(values, step=row["step"])

    try:
        yield log
    finally:
        for tracker in trackers:
            tracker.finish()


def _tracker(name: str, folder: Path, run_name: str) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers ask it which process they are in
    folder.mkdir(parents=True, exist_ok=True)
    kind = LOGGER_TYPE_TO_CLASS[name]
    options = {}
    if name == "wandb":
        mode = os.environ.get("WANDB_MODE", "offline")
        options = {"dir": str(folder), "name": run_name, "mode": mode}
    where = [str(folder)] if kind.requires_logging_directory else []
    return kind("rlvr-debug", *where, **options)


def rollout_records(step: Step, count: int, served: str = "") -> list[dict[str, Any]]:
    """Return a line for each of the first `count` rollouts. served: the policy that a server sampled with."""
    chat, advantages = step.training.chat, step.experience.advantages
    size = step.training.settings.group_size
    return [
        {
            "step": step.number,
            **({"served": served} if served else {}),
            "group": b // size,
            "rollout": b,
            "row": rollout.row.id,
            "reward": rollout.reward,
            "parts": rollout.parts,
            "advantage": round(float(advantages[b]), _DIGITS),
            **as_sampled(rollout, _sampler(rollout), chat),
            "trained": _trained(b, step),
        }
        for b, rollout in enumerate(step.rollouts[:count])
    ]


def _sampler(rollout: Rollout) -> list[float | None]:
    values: list[float | None] = []
    for segment in rollout.segments:
        found = [round(value, _DIGITS) for value in segment.logprobs]
        values += found or [None] * len(segment.ids)
    return values


def _trained(b: int, step: Step) -> dict[str, Any]:
    batch, reference = step.experience, step.reference
    length = int(batch.real[b].sum())
    sampled, counted = batch.sampled[b, :length], batch.loss[b, :length]
    known = counted | sampled
    known[0] = False  # the first token has no prediction
    ids = batch.ids[b, :length].tolist()
    roles = 2 * (sampled.cumsum(0) > 0) - sampled.long()
    return {
        "ids": ids,
        "text": token_texts(ids, step.training.chat),
        "role": "".join("pat"[role] for role in roles.tolist()),
        "loss": _bits(counted),
        "attention": _bits(batch.attention[b, :length]),
        "sampler": _values(batch.sampler[b, :length], sampled),
        "trainer": _values(step.update.logprobs[b, :length], known),
        "reference": None if reference is None else _values(reference[b, :length], known),
        "advantage": _values(batch.advantages[b].expand(length), counted),
    }


def _bits(mask: Tensor) -> str:
    return "".join("01"[bit] for bit in mask.tolist())


def _values(values: Tensor, where: Tensor) -> list[float | None]:
    return [
        round(value, _DIGITS) if there else None
        for value, there in zip(values.tolist(), where.tolist(), strict=True)
    ]
