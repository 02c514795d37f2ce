"""Did the sampler get the update? Its log-probabilities of some sequences, beside the trainer's. Axes: B, T.

A server is always asked: it holds what it read from files. The sampler in process, whose failing sync may be what is
studied, is asked where the option sync_bound says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import Training
from rlvr_debug.grpo.update import shared_logprobs
from rlvr_debug.sampling.rollouts import Rollout

_SEQUENCES = 4


@dataclass(frozen=True)
class SyncCheck:
    """How a sampler is asked for log-probabilities at temperature 1, and how many nats per token it may be off on average."""

    ask: Callable[[list[list[int]]], list[list[float]]]
    bound: float
    key: str

    def __call__(
        self, training: Training, policy: Policy, rollouts: list[Rollout]
    ) -> Callable[[Policy, int], float | None]:
        """Note the trainer's log-probabilities of some rollouts, as sampled, before the update; return what compares them after."""

        def chosen() -> Batch:
            # spread over the rollouts, as many for each process
            wanted = max(_SEQUENCES // training.processes.size, 1) * training.processes.size
            rows = torch.linspace(0, len(rollouts) - 1, min(wanted, len(rollouts))).long()
            some = [rollouts[b] for b in rows.tolist()]
            return build_batch(some, Stages(), training.environment, training.chat)

        batch = training.processes.broadcast(chosen)
        return partial(self._gap, training, batch, _logprobs(training, policy, batch))

    def _gap(
        self, training: Training, batch: Batch, before: Tensor, policy: Policy, step: int
    ) -> float | None:
        """Return the mean absolute difference of sampler and trainer over sampled tokens, None but in the main process.

        Raise InputError where it is above the bound, or the sampler is nearer to what the trainer was than to what it is.
        """
        after = _logprobs(training, policy, batch)
        if not training.processes.main:
            return None
        ids = [row[real].tolist() for row, real in zip(batch.ids, batch.real, strict=True)]
        answered = torch.zeros(batch.ids.shape)
        for row, values in zip(answered, self.ask(ids), strict=True):
            row[1 : len(values) + 1] = torch.tensor(values)
        gap, behind = (
            float((answered - logprobs)[batch.sampled].abs().mean()) for logprobs in (after, before)
        )
        found = f"step {step}: after the update the sampler is {gap:.2g} nats from the trainer on average"
        if 2 * behind < gap:
            raise InputError(
                f"{found}, and {behind:.2g} from what the trainer was before, expected to follow: "
                "it has not got the trained weights"
            )
        if not gap <= self.bound:
            raise InputError(
                f"{found}, expected at most {self.bound:g} ({self.key}): it has not got all of "
                "the trained weights, or computes otherwise"
            )
        return gap


def _logprobs(training: Training, policy: Policy, batch: Batch) -> Tensor:
    """Return the trainer's log-probabilities at temperature 1, as a server gives a prompt's: [B, T]."""
    settings = replace(training.settings, temperature=1.0)
    return shared_logprobs(policy.shared, batch, settings, Stages(), training.processes)
