"""A released GRPOTrainer of TRL as the subject of the probes: its stages and its loss.

This module runs in a release's environment only. Axes: B sequences, T tokens, N groups, G rollouts per
prompt. Rows are in the order in which they were generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from trl import GRPOTrainer

from lab.probes.base import Measurement
from lab.releases.second_iteration import second_iteration
from lab.releases.trainer import ReleasedTrainer
from lab.releases.trl.batches import Inputs, TrlBatches
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["TrlTrainer"]

_LOGPROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
_ROUNDING = 1e-3


class TrlTrainer(TrlBatches, ReleasedTrainer):
    """The release's GRPOTrainer."""

    def stages(self) -> Stages:
        own = Stages(
            max_new_tokens=lambda _: int(self.trainer.max_completion_length),
            score=self._score,
            logprobs=self.logprobs,
        )
        if not self.separate:
            return own
        return (
            own.with_fault("advantages", self._advantages)
            .with_fault("assign", self._assign)
            .with_fault("kl", self._kl)
        )

    def _score(self, rollout: Rollout, environment: Environment) -> Mapping[str, float]:
        [at] = [b for b, played in enumerate(self.played) if played is rollout]
        if not self._told:  # it scores where it computes the loss
            self.trainer.compute_loss(self.trainer.model, self._inputs)
        return {name: self._told[name][at] for name in environment.weights}

    def own_logprobs(self, model: Any, ids: Tensor, attention: Tensor, kept: int) -> Tensor:
        for name in _LOGPROBS:
            if hasattr(self.trainer, name):
                found = getattr(self.trainer, name)(model, ids, attention, kept)
                logprobs: Tensor = found[0] if isinstance(found, tuple) else found
                return logprobs
        # in 0.14.0 a function within compute_loss, which has no mask
        outer = GRPOTrainer.compute_loss
        [code] = [
            each
            for each in outer.__code__.co_consts
            if isinstance(each, CodeType) and each.co_name == "get_per_token_logps"
        ]
        inner: Tensor = FunctionType(code, outer.__globals__)(model, ids, kept)
        return inner

    def _advantages(self, rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        """Return the advantages of groups, [N, G], as many at a time as a batch has."""
        flat, count = rewards.flatten(), len(self._rollouts)
        found = []
        for part in torch.split(F.pad(flat, (0, -len(flat) % count)), count):
            by_rollout = torch.empty(count)
            by_rollout[self.order] = part.float()
            found.append(self._prepared(by_rollout)["advantages"])
        return torch.cat(found)[: len(flat)].view_as(rewards)

    def _assign(self, advantages: Tensor) -> Tensor:
        """Return the reward that each row was credited with: these values, where it is its own.

        It is the row's advantage, with the normalisation by its group undone.
        """
        credited = self._advantages(advantages, "group", 0.0) * (
            advantages.std(1, keepdim=True) + 1e-4
        ) + advantages.mean(1, keepdim=True)
        same = (credited - advantages).abs() < _ROUNDING
        return torch.where(same, advantages, credited).flatten()

    # --- its loss, where it is apart from its inputs

    def _look_up(self, logprobs: Tensor) -> dict[str, Any]:
        """Return attributes of the trainer with which the policy has these log-probabilities, [b, T]."""
        [name] = [name for name in _LOGPROBS if hasattr(self.trainer, name)]

        def look_up(
            model: Any, ids: Tensor, attention: Tensor, kept: int, *_: Any, **__: Any
        ) -> Any:
            found = logprobs[:, -kept:]
            return (found, torch.zeros_like(found)) if name == _LOGPROBS[0] else found

        return {name: look_up}

    def _loss(self, inputs: Inputs, logprobs: Tensor, **changes: Any) -> Tensor:
        """Return compute_loss at these log-probabilities, [b, T]."""
        with self._changed(**self._look_up(logprobs), **changes):
            found: Tensor = self.trainer.compute_loss(self.trainer.model, inputs)
        return found

    def loss(
        self,
        logprobs: Tensor,
        targets: Targets,
        totals: Totals,
        settings: TrainingSettings,
        stages: Stages,
    ) -> Tensor:
        """Return the loss of the whole batch, in the place of grpo.loss.policy_loss; for parts see step_gradient."""
        assert totals.micro_batches == 1
        kept = self._inputs["completion_ids"].shape[1]
        held = {"ref_per_token_logps": targets.reference, "old_per_token_logps": targets.old}
        inputs = {
            **self._inputs,
            "advantages": targets.advantages,
            **{name: None if x is None else x[:, -kept:] for name, x in held.items()},
        }
        if targets.reference is None:  # 0.15 computes a KL to weigh it by 0
            inputs["ref_per_token_logps"] = logprobs.detach()[:, -kept:]
        changes = {
            "beta": 0.0 if targets.reference is None else settings.kl_beta,
            "loss_type": settings.aggregation,
            "epsilon_low": settings.clip,
            "epsilon_high": settings.epsilon_high,
            "max_completion_length": totals.max_tokens,
            # with one, 0.16 takes the policy itself for the old one
            "num_iterations": 1 if targets.old is None else 2,
        }
        return self._loss(inputs, logprobs, **changes)

    def second_iteration(self, settings: TrainingSettings) -> Measurement:
        def prepared(gains: Tensor, old: Tensor) -> Inputs:
            with self._changed(num_iterations=2, **self._look_up(old)):
                inputs: Inputs = self._prepared()
            return {**inputs, "advantages": gains}

        def loss(inputs: Inputs, now: Tensor, width: int) -> Tensor:
            return self._loss(inputs, now, beta=0.0, num_iterations=2, max_completion_length=width)

        return second_iteration(self.batch.loss, prepared, loss, settings)

    def _kl(self, logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
        """Return the loss of a row, one token at a time, where the advantage is 0 and beta 1."""
        row = {k: v[:1] if isinstance(v, Tensor) and v.ndim else v for k, v in self._inputs.items()}
        row = {
            **row,
            "advantages": torch.zeros(1, dtype=logprobs.dtype),
            "old_per_token_logps": None,
        }
        width = row["completion_ids"].shape[1]
        found = []
        for policy, held in zip(logprobs.flatten(), reference.flatten(), strict=True):
            row["ref_per_token_logps"] = held.expand(1, width)
            values = policy.expand(1, width)
            found.append(self._loss(row, values, beta=1.0, loss_type="grpo", num_iterations=1))
        return torch.stack(found).view_as(logprobs)
