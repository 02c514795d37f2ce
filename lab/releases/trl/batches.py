"""A released GRPOTrainer of TRL, built as a user builds it, and the batch that it trains on.

The trainer is built from a model's folder, reward functions and a dataset. Only the sampler is replaced:
`generate` answers with what our sampler wrote. Nothing here says what a mask or a sequence is: rows are
what its data loader yields, and ids, attention and loss mask are what its `compute_loss` hands the model,
and which of the model's logits its gradient reaches.

0.14.0 does all of it in `compute_loss`. From 0.15 on `_prepare_inputs` makes a dictionary, whose keys are
the same in every release.

This module runs in a release's environment only. Axes: B sequences, T tokens, P prompts, G rollouts per
prompt, V tokens of the vocabulary. Rows are in the order in which they were generated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lab.releases.trl.replay import TrlReplay
from rlvr_debug.environments.base import Environment, Transcript
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Inputs", "Step", "TrlBatches"]

Inputs = dict[str, Any]


@dataclass(frozen=True)
class _Padded(Batch):
    """A batch in the release's own layout, which pads prompts on the left: no column can be cut."""

    def rows(self, index: Tensor) -> Batch:
        values = (getattr(self, name)[index] for name in Batch.__dataclass_fields__)
        return _Padded(*values)


class _Stopped(Exception):
    """Ends the training loop once the gradient is there."""


@dataclass(frozen=True)
class Step:
    """What a step of training is made of. rollouts: one turn each, group_size of each prompt."""

    model: Path
    rollouts: list[Rollout]
    environment: Environment
    chat: Chat
    settings: TrainingSettings


class TrlBatches:
    """The trainer, and the batch that it makes of a step's rollouts.

    out: a folder for what it writes; cut: into how many micro-batches the batch is cut; told: further
    settings of GRPOConfig, by the release's own names.
    """

    def __init__(self, step: Step, out: Path, *, cut: int = 1, **told: Any) -> None:
        rollouts, environment, settings = step.rollouts, step.environment, step.settings
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
            model=str(step.model),
            reward_funcs=[self._part(name) for name in environment.weights],
            args=config,
            train_dataset=Dataset.from_list(data),
            processing_class=step.chat.tokenizer,
        )
        self.config = config
        self.replay = self.trainer.model.generate = TrlReplay(rollouts)
        self.trainer.model.train()
        # as its training loop does at each step
        self.trainer.current_gradient_accumulation_steps = cut

    def _part(self, name: str) -> Callable[..., list[float]]:
        """Return a reward function of the text that the release hands it, and of the row that it names."""

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
        """Return the rows of a step, as its own data loader yields them."""
        found: list[dict[str, Any]] = next(iter(self.trainer.get_train_dataloader()))
        return found

    def _prepared(self, rewards: Tensor | None = None) -> Any:
        """Return what its _prepare_inputs makes. rewards: by rollout, [B], else the environment's.

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
        """Give the trainer these attributes while the context is entered."""
        return patch.multiple(self.trainer, create=True, **changes) if changes else nullcontext()

    def _rewarded(self, rewards: Tensor | None) -> Any:
        """Make the reward functions say this of each rollout, [B], while the context is entered."""
        return patch.object(self, "_given", rewards)

    @cached_property
    def separate(self) -> bool:
        """Say whether its inputs are made apart from its loss."""
        return isinstance(self._inputs, dict)

    @cached_property
    def _inputs(self) -> Any:
        return self._prepared()

    @property
    def order(self) -> list[int]:
        """Return which rollout each row of the batch is."""
        return self._made[1]

    @property
    def played(self) -> list[Rollout]:
        """Return the rollouts in the order of the batch."""
        return [self._rollouts[i] for i in self.order]

    @cached_property
    def _made(self) -> tuple[Batch, list[int]]:
        """Return what is trained, and the rollout of each row."""
        # of advantages that are 0 the loss counts nothing
        contrast = 1.0 - 2.0 * (torch.arange(len(self._rollouts)) % 2)
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def record(_: Any, input_ids: Tensor, attention_mask: Any = None, **named: Any) -> Any:
            """Stand in for the model's forward, which without a mask lets every token be seen."""
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

    @property
    def batch(self) -> Batch:
        """Return what is trained."""
        return self._made[0]

    # --- its step

    def step_gradient(self, rewards: Tensor) -> Tensor:
        """Return what its training loop hands the optimizer at the first step, in one vector.

        rewards: by rollout, [B]. That ends the loop: no other is to be begun.
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
