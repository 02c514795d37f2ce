"""A released trainer of verifiers as the subject of the probes: its own code, from its wheel.

The trainer is the release's GRPOTrainer, built as a user builds it. Only what would talk to a server is
replaced: the client that syncs weights, and the answers of the sampler (replay.py). Nothing here says
what a mask or a sequence is: batches are what its `_prepare_inputs` makes of its own rollout loop, and
masks are what its `compute_loss` hands the model and counts.

This module runs in a release's environment only. Axes: B sequences, T tokens, P prompts, G rollouts per
prompt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch.nn import functional as F
from verifiers.trainers import GRPOConfig, GRPOTrainer

from lab.probes.base import Measurement
from lab.releases.second_iteration import second_iteration
from lab.releases.trainer import ReleasedTrainer
from lab.releases.verifiers.replay import Replay
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["VerifiersTrainer"]

Inputs = dict[str, Any]


class VerifiersTrainer(ReleasedTrainer):
    """The release's GRPOTrainer.

    model: the policy; rollouts: group_size of each prompt, of which the batch is made.
    """

    def __init__(
        self,
        model: Any,
        rollouts: list[Rollout],
        environment: Environment,
        chat: Chat,
        config: GRPOConfig,
    ) -> None:
        self.env = Replay(rollouts, environment, chat)
        with patch.dict(sys.modules, {"verifiers.inference.vllm_client": MagicMock()}):
            self.trainer = GRPOTrainer(model, self.env, config, chat.tokenizer)
        self.trainer.state.max_steps = 1
        self._generator = self.trainer.async_generator
        # each rollout has a client of its own
        self._generator.client = SimpleNamespace(base_url="")

    def _changed(self, **changes: Any) -> Any:
        """Give the trainer these attributes while the context is entered."""
        return patch.multiple(self.trainer, **changes)

    # --- its batches

    def _prepared(
        self, produce: Callable[[Any], Any], count: int, advantages: Tensor, **changes: Any
    ) -> Inputs:
        """Return the inputs of compute_loss, made by the trainer's _prepare_inputs, in the order that it
        shuffles them to. produce: a request for a batch -> its result; advantages: [B]."""
        requests: list[Any] = []
        generator = SimpleNamespace(
            num_batches_ahead=0,
            start=lambda: None,
            submit_batch=requests.append,
            get_batch=lambda _: produce(requests[-1]),
        )
        rows = list(islice(cycle(self.env.inputs), count))
        changes = {
            "async_generator": generator,
            "_async_dataloader": SimpleNamespace(peek_ahead=lambda _: [rows]),
            "_compute_advantages": lambda _: advantages,
            "_step": 0,
            "_next_batch_id": 0,
            "_buffered_inputs": None,
            **changes,
        }
        with (
            torch.random.fork_rng(devices=[]),
            self._changed(create=True, **changes),
        ):
            torch.manual_seed(0)
            found: Inputs = self.trainer._prepare_inputs([{}] * count)
        return found

    @cached_property
    def _generated(self) -> tuple[Any, Inputs]:
        """Return the result of the rollout loop, and the inputs made of it, whose advantages number the rows."""
        results: list[Any] = []

        def produce(request: Any) -> Any:
            results.append(asyncio.run(self._generator._generate_batch_async(request)))
            return results[0]

        count = len(self.env.played)
        inputs = self._prepared(produce, count, torch.arange(float(count)))
        return results[0], inputs

    @cached_property
    def batch(self) -> Batch:
        result, inputs = self._generated
        order = inputs["advantages"].argsort()
        ids, attention, loss = (found[order] for found in self._seen(inputs))
        processed = result.processed_results
        real = torch.zeros(ids.shape, dtype=torch.bool)
        for b, parts in enumerate(zip(processed.prompt_ids, processed.completion_ids, strict=True)):
            real[b, : sum(map(len, parts))] = True
        sampled, sampler = self._written(ids)
        return Batch(ids, sampled, sampler, real, loss, attention)

    def _written(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return which tokens of the release's sequences the model wrote, and with what log-probabilities,
        [B, T] each. A reply that the sequence has in other tokens does not count."""
        sampled, sampler = torch.zeros(ids.shape, dtype=torch.bool), torch.zeros(ids.shape)
        completions = self.env.told["completions"]
        longest = max(map(len, completions))
        ends = torch.tensor([self.env.processed(k) for k in range(longest + 1)])
        for b, completion in enumerate(completions):
            replies = [s for s in self.env.played[b].segments if s.role == "assistant"]
            places = [k for k, message in enumerate(completion) if message["role"] == "assistant"]
            for k, segment in zip(places, replies, strict=True):
                where = slice(int(ends[k, b]), int(ends[k + 1, b]))
                if ids[b, where].tolist() == segment.ids:
                    sampled[b, where] = True
                    sampler[b, where] = torch.tensor(segment.logprobs)
        return sampled, sampler

    def _seen(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, attention mask and loss mask, [B, T] each: what compute_loss hands the model, and which
        log-probabilities its gradient reaches."""
        given: list[tuple[Tensor, Tensor, Tensor]] = []

        def record(_: Any, ids: Tensor, attention: Tensor, kept: int, *__: Any) -> Tensor:
            leaf = torch.zeros(len(ids), kept, requires_grad=True)
            given.append((ids, attention, leaf))
            return leaf

        ones = torch.ones(len(inputs["advantages"]))
        inputs = {**inputs, "advantages": ones, "old_per_token_logps": None}
        with self._changed(_get_per_token_logps=record, beta=0.0):
            loss = self.trainer.compute_loss(self.trainer.model, inputs)
        [(ids, attention, leaf)] = given
        [gradient] = torch.autograd.grad(loss, leaf)
        counted = F.pad(gradient != 0, (ids.shape[1] - leaf.shape[1], 0))
        return ids, attention.bool(), counted

    # --- its loss

    def _marked(self, mask: Tensor, advantages: Tensor, **changes: Any) -> Inputs:
        """Return the inputs of sequences whose ids are their row's number. mask: what the model wrote,
        [B, T], the first token being the prompt; advantages: [B]."""
        rows = range(len(mask))
        later = mask[:, 1:].long().tolist()
        processed = SimpleNamespace(
            prompt_ids=[[row] for row in rows],
            prompt_mask=[[0] for _ in rows],
            completion_ids=[[row] * len(later[row]) for row in rows],
            completion_mask=later,
            rewards=[0.0 for _ in rows],
        )
        result = SimpleNamespace(
            processed_results=processed,
            all_reward_dict={},
            completions=[],
            prompts=[],
        )
        logs = {"_log_reward_metrics_primary": lambda **_: None}
        return self._prepared(lambda _: result, len(mask), advantages, **logs, **changes)

    def _loss(
        self,
        inputs: Inputs,
        logprobs: Tensor,
        reference: Tensor | None,
        settings: TrainingSettings,
        max_tokens: int,
    ) -> Tensor:
        """Return compute_loss at these log-probabilities, [B, T], of `_marked` inputs."""
        trainer = self.trainer
        changes = {
            "_get_per_token_logps": self._look_up(logprobs, reference),
            "beta": 0.0 if reference is None else settings.kl_beta,
            "loss_type": settings.aggregation,
            "epsilon_low": settings.clip,
            "epsilon_high": settings.epsilon_high,
            "delta": settings.delta or None,
            "max_seq_len": max_tokens,
        }
        with self._changed(**changes):
            found: Tensor = trainer.compute_loss(trainer.model, inputs)
        return found

    def _look_up(self, logprobs: Tensor, reference: Tensor | None) -> Callable[..., Tensor]:
        def look_up(model: Any, ids: Tensor, *_: Any, **__: Any) -> Tensor:
            table = logprobs if model is self.trainer.model else reference
            assert table is not None
            return table[ids[:, 0], 1:]

        return look_up

    def loss(
        self,
        logprobs: Tensor,
        targets: Targets,
        totals: Totals,
        settings: TrainingSettings,
        stages: Stages,
    ) -> Tensor:
        """Return what a micro-batch adds to the gradient, in the place of grpo.loss.policy_loss."""
        inputs = self._marked(
            targets.mask,
            targets.advantages,
            _get_per_token_logps=self._look_up(logprobs, targets.reference),
        )
        if targets.old is not None:
            inputs["old_per_token_logps"] = targets.old[inputs["input_ids"][:, 0], 1:]
        found = self._loss(inputs, logprobs, targets.reference, settings, totals.max_tokens)
        # transformers' Trainer divides by the number of micro-batches
        return found / totals.micro_batches

    def second_iteration(self, settings: TrainingSettings) -> Measurement:
        mask = torch.ones(len(self.env.played), 8, dtype=torch.bool)
        mask[:, 0] = False  # the prompt
        return second_iteration(
            mask,
            lambda gains, old: self._marked(
                mask, gains, _get_per_token_logps=self._look_up(old, None), num_iterations=2
            ),
            lambda inputs, now, width: self._loss(inputs, now, None, settings, width),
            settings,
        )

    # --- its stages

    def stages(self) -> Stages:
        return Stages(
            max_new_tokens=self._max_new_tokens,
            score=self._score,
            advantages=self._advantages,
            assign=self._assign,
            logprobs=self.logprobs,
            kl=self._kl,
        )

    def _max_new_tokens(self, environment: Environment) -> int:
        return int(self.trainer._get_sampling_args()["max_tokens"])

    def _score(self, rollout: Rollout, environment: Environment) -> Mapping[str, float]:
        result, _ = self._generated
        [at] = [i for i, played in enumerate(self.env.played) if played is rollout]
        return {name: result.all_reward_dict[name][at] for name in environment.weights}

    def _advantages(self, rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        group = {"num_generations": rewards.shape[1], "scale_rewards": scaling == "group"}
        with self._changed(**group):
            found: Tensor = self.trainer._compute_advantages(rewards.flatten())
        return found.view_as(rewards)

    def _assign(self, advantages: Tensor) -> Tensor:
        flat = advantages.flatten()
        inputs = self._marked(torch.ones(len(flat), 2), flat, _get_per_token_logps=_zeros)
        found: Tensor = inputs["advantages"][inputs["input_ids"][:, 0].argsort()]
        return found

    def own_logprobs(self, model: Any, ids: Tensor, attention: Tensor, kept: int) -> Tensor:
        found: Tensor = self.trainer._get_per_token_logps(model, ids, attention, kept)
        return found

    def _kl(self, logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
        """Return the loss of one token at a time, where the advantage is 0 and beta 1."""
        inputs = self._marked(
            torch.ones(1, 2), torch.zeros(1, dtype=logprobs.dtype), _get_per_token_logps=_zeros
        )
        inputs["old_per_token_logps"] = None
        changes = {"beta": 1.0, "loss_type": "grpo"}
        found = []
        with self._changed(**changes):
            for policy, held in zip(logprobs.flatten(), reference.flatten(), strict=True):
                look_up = self._look_up(policy.expand(1, 2), held.expand(1, 2))
                with patch.object(self.trainer, "_get_per_token_logps", look_up):
                    found.append(self.trainer.compute_loss(self.trainer.model, inputs))
        return torch.stack(found).view_as(logprobs)


def _zeros(_: Any, ids: Tensor, attention: Tensor, kept: int, *__: Any, **___: Any) -> Tensor:
    return torch.zeros(len(ids), kept)
