"""A released GRPOTrainer of TRL as the subject of the probes: its own code, from its wheel.

The trainer is built as a user builds it, from a model's folder, reward functions and a dataset. Replaced
is the sampler alone: `generate` answers with what our sampler wrote. Nothing here says what a mask or a
sequence is: rows are what its data loader yields, and ids, attention and loss mask what its
`compute_loss` hands the model, and which of the model's logits its gradient reaches.

0.14.0 does all of it in `compute_loss`. From 0.15 on `_prepare_inputs` makes a dictionary, whose keys are
the same in every release.

Runs in a release's environment only. Axes: B sequences, T tokens, P prompts, G rollouts per prompt, V
tokens of the vocabulary. Rows are in the order in which they were generated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rlvr_debug.environments.base import Environment, Transcript
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.probes.base import Measurement
from rlvr_debug.probes.release_iterations import second_iteration
from rlvr_debug.probes.trl_release_replay import TrlReplay
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["TrlRelease"]

Inputs = dict[str, Any]
_LOGPROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
_ROUNDING = 1e-3


@dataclass(frozen=True)
class _Padded(Batch):
    """In the release's own layout, whose prompts are padded on the left: no column can be cut."""

    def rows(self, index: Tensor) -> Batch:
        values = (getattr(self, name)[index] for name in Batch.__dataclass_fields__)
        return _Padded(*values)


class _Stopped(Exception):
    """The gradient is there."""


class TrlRelease:
    """The trainer, and its functions in the shapes of our stages.

    rollouts: one turn each, group_size of each prompt; cut: how many micro-batches their batch is cut
    into. told: further settings of GRPOConfig, by the release's own names.
    """

    def __init__(
        self,
        model: Path,
        rollouts: list[Rollout],
        environment: Environment,
        chat: Chat,
        settings: TrainingSettings,
        out: Path,
        *,
        cut: int = 1,
        **told: Any,
    ) -> None:
        groups = rollouts[:: settings.group_size]
        self._rollouts, self._environment = rollouts, environment
        self._rows = [group.row for group in groups]
        self._given: Tensor | None = None  # rewards by rollout, in the place of the environment's
        self._told: dict[str, list[float]] = {}
        # until a sampler of TRL's own repeated each prompt, a batch was counted in prompts
        repeats = "_get_train_sampler" in vars(GRPOTrainer)
        config = GRPOConfig(
            output_dir=str(out),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            max_steps=1,
            per_device_train_batch_size=len(rollouts if repeats else groups) // cut,
            gradient_accumulation_steps=cut,
            num_generations=settings.group_size,
            temperature=settings.temperature,
            max_completion_length=environment.max_new_tokens,
            beta=settings.kl_beta,
            **told,
        )
        data = [{"prompt": environment.messages(r.row), "row": i} for i, r in enumerate(groups)]
        self.trainer = GRPOTrainer(
            model=str(model),
            reward_funcs=[self._part(name) for name in environment.weights],
            args=config,
            train_dataset=Dataset.from_list(data),
            processing_class=chat.tokenizer,
        )
        self.config = config
        self.replay = self.trainer.model.generate = TrlReplay(rollouts)
        self.trainer.model.train()
        # as its training loop does at each step
        self.trainer.current_gradient_accumulation_steps = cut

    def _part(self, name: str) -> Callable[..., list[float]]:
        """A reward function: of the text that the release hands it, and the row that it says it is of."""

        def part(completions: Any, row: list[int], **_: Any) -> list[float]:
            if self._given is not None:
                return [float(self._given[i]) for i in self.replay.order]
            found = []
            for (message,), i in zip(completions, row, strict=True):
                transcript = Transcript([message["content"]])
                found.append(self._environment.score(self._rows[i], transcript)[name])
            self._told[name] = found
            return found

        part.__name__ = name
        return part

    # --- its batch

    @cached_property
    def _examples(self) -> list[dict[str, Any]]:
        """The rows of a step, as its own data loader yields them."""
        found: list[dict[str, Any]] = next(iter(self.trainer.get_train_dataloader()))
        return found

    def _prepared(self, rewards: Tensor | None = None) -> Any:
        """By its _prepare_inputs. rewards: by rollout, [B], else the environment's.

        Some releases shuffle the rows: a key beside the others numbers them, so that they can be put back.
        """
        generate = getattr(self.trainer, "_generate_and_score_completions", None)

        def numbered(examples: Any) -> Inputs:
            made: Inputs = generate(examples)  # type: ignore[misc]
            return {**made, "number": torch.arange(len(made["advantages"]))}

        # at a step of its own: within one, a batch that is there would be used again
        changed = {"_generate_and_score_completions": numbered, "_step": 0} if generate else {}
        with torch.random.fork_rng(devices=[]), self._rewarded(rewards), self._changed(**changed):
            torch.manual_seed(0)
            inputs = self.trainer._prepare_inputs(copy.deepcopy(self._examples))
        if not isinstance(inputs, dict) or "number" not in inputs:
            return inputs
        order = inputs.pop("number").argsort()
        rows = {k: v[order] for k, v in inputs.items() if isinstance(v, Tensor) and v.ndim}
        return {**inputs, **rows}

    def _changed(self, **changes: Any) -> Any:
        """Inside, the trainer has these attributes."""
        return patch.multiple(self.trainer, create=True, **changes) if changes else nullcontext()

    def _rewarded(self, rewards: Tensor | None) -> Any:
        """Inside, the reward functions say this of each rollout, [B]."""
        return patch.object(self, "_given", rewards)

    @cached_property
    def separate(self) -> bool:
        """Whether its inputs are made apart from its loss."""
        return isinstance(self._inputs, dict)

    @cached_property
    def _inputs(self) -> Any:
        return self._prepared()

    @property
    def played(self) -> list[Rollout]:
        """The rollouts in the order of the batch."""
        return [self._rollouts[i] for i in self._made[1]]

    @cached_property
    def _made(self) -> tuple[Batch, list[int]]:
        """What is trained, and the rollout of each row."""
        # of advantages that are 0 the loss counts nothing
        contrast = 1.0 - 2.0 * (torch.arange(len(self._rollouts)) % 2)
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def record(_: Any, input_ids: Tensor, attention_mask: Any = None, **named: Any) -> Any:
            """The model's forward. Without a mask it would let every token be seen."""
            kept = named.get("num_logits_to_keep", named.get("logits_to_keep", input_ids.shape[1]))
            vocabulary = self.trainer.model.config.vocab_size
            logits = torch.zeros(len(input_ids), kept, vocabulary, requires_grad=True)
            everything = torch.ones_like(input_ids)
            seen.append(
                (input_ids, everything if attention_mask is None else attention_mask, logits)
            )
            return SimpleNamespace(logits=logits)

        inputs = self._prepared(contrast)
        recorder = type("Recorder", (nn.Module,), {"forward": record, "generate": self.replay})()
        with self._rewarded(contrast), self._changed(beta=0.0):
            loss = self.trainer.compute_loss(recorder, copy.deepcopy(inputs))
        [(ids, attention, logits)] = seen
        [gradient] = torch.autograd.grad(loss, logits)
        # logits are those of the next token
        counted = F.pad((gradient != 0).any(-1)[:, :-1], (ids.shape[1] - logits.shape[1] + 1, 0))
        real = self.replay.real
        if ids.shape != real.shape:
            raise InputError(
                f"the release trains a batch of shape {tuple(ids.shape)}, expected that of what was "
                f"generated, {tuple(real.shape)}"
            )
        sampled, sampler = torch.zeros_like(real), torch.zeros(real.shape)
        for b, i in enumerate(self.replay.order):
            reply = self._rollouts[i].segments[1]
            where = real[b].nonzero()[-len(reply.ids) :, 0]
            if ids[b, where].tolist() == reply.ids:
                sampled[b, where] = True
                sampler[b, where] = torch.tensor(reply.logprobs)
        batch = _Padded(ids, sampled, sampler, real, counted, attention.bool())
        return batch, self.replay.order

    def build(
        self,
        rollouts: list[Rollout],
        stages: Stages,
        environment: Environment,
        chat: Chat,
        *,
        mask_truncated: bool = False,
    ) -> Batch:
        """Of its own rollouts, whatever is asked for."""
        return self._made[0]

    # --- its step

    def step_gradient(self, rewards: Tensor) -> Tensor:
        """What its training loop hands the optimizer at the first step, in one vector. rewards: by rollout, [B].

        Ends that loop: no other is to be begun.
        """
        model, found = self.trainer.model, []

        class Take(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                parts = (
                    torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()
                )
                found.append(torch.cat([part.flatten().clone() for part in parts]))
                raise _Stopped

        self.trainer.add_callback(Take())
        with self._rewarded(rewards), suppress(_Stopped):
            self.trainer.train()
        [gradient] = found
        return gradient

    # --- its stages

    def stages(self) -> Stages:
        """Those that are functions of their own, or can be told apart."""
        own = Stages(
            max_new_tokens=lambda _: int(self.trainer.max_completion_length),
            score=self._score,
            logprobs=self._logprobs,
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

    def _logprobs(
        self, model: Any, ids: Tensor, attention: Tensor, wanted: Tensor, *_: Any, **__: Any
    ) -> Tensor:
        found = self._own_logprobs(model, ids, attention.long(), ids.shape[1] - 1)
        padded = F.pad(found, (1, 0))
        return torch.where(wanted, padded, torch.zeros_like(padded))

    def _own_logprobs(self, model: Any, ids: Tensor, attention: Tensor, kept: int) -> Tensor:
        """[B, kept]."""
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
        """Of groups, [N, G], as many at a time as a batch has."""
        flat, count = rewards.flatten(), len(self._rollouts)
        found = []
        for part in torch.split(F.pad(flat, (0, -len(flat) % count)), count):
            by_rollout = torch.empty(count)
            by_rollout[self._made[1]] = part.float()
            found.append(self._prepared(by_rollout)["advantages"])
        return torch.cat(found)[: len(flat)].view_as(rewards)

    def _assign(self, advantages: Tensor) -> Tensor:
        """The reward that each row was credited with: these values, where it is its own.

        Its advantage, with the normalisation by its group undone.
        """
        credited = self._advantages(advantages, "group", 0.0) * (
            advantages.std(1, keepdim=True) + 1e-4
        ) + advantages.mean(1, keepdim=True)
        same = (credited - advantages).abs() < _ROUNDING
        return torch.where(same, advantages, credited).flatten()

    # --- its loss, where it is apart from its inputs

    def _look_up(self, logprobs: Tensor) -> dict[str, Any]:
        """Attributes of the trainer, with which the policy has these log-probabilities, [b, T]."""
        [name] = [name for name in _LOGPROBS if hasattr(self.trainer, name)]

        def look_up(
            model: Any, ids: Tensor, attention: Tensor, kept: int, *_: Any, **__: Any
        ) -> Any:
            found = logprobs[:, -kept:]
            return (found, torch.zeros_like(found)) if name == _LOGPROBS[0] else found

        return {name: look_up}

    def _loss(self, inputs: Inputs, logprobs: Tensor, **changes: Any) -> Tensor:
        """compute_loss at these log-probabilities, [b, T]."""
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
        """In the place of grpo.loss.policy_loss, of the whole batch; of parts see step_gradient."""
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

        return second_iteration(self._made[0].loss, prepared, loss, settings)

    def _kl(self, logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
        """Of one token at a time: the loss of a row, where the advantage is 0 and beta 1."""
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
