"""Fills a record from our own trainer, unchanged: B rollouts, b of a micro-batch, T tokens, C tokens of a completion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.grpo.loss import Batch as Sequences
from rlvr_debug.grpo.policy import ADAPTER_NAME, Adapter, Policy, build_policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import start, train_step
from rlvr_debug.grpo.training import Observer, Progress, Step, TrainerState, Training
from rlvr_debug.models.base_model import is_adapter, one_thread
from rlvr_debug.recorders.keeping import (
    Snapshots,
    gradients_of,
    groups_of,
    kept,
    names_of,
    stacked,
    state_of,
)
from rlvr_debug.recorders.trl.objects import adapters_of, plain_module
from rlvr_debug.replay.network import plain_weights
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Forward,
    Generation,
    MicroBatch,
    Record,
    RewardCall,
    Update,
)
from rlvr_debug.replay.settings import Sampling
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers import Job
from rlvr_debug.trainers.own.training import load_policy, training_of
from rlvr_debug.trainers.program_record import settings_of


def record_case(job: Job, steps: int = 2) -> Record:
    """Return the record of the job's run: its first steps, from the base model on."""
    one_thread()
    training = training_of(job)
    model, reference = load_policy(job.base_model, training.settings)
    sampler = base_sampler(job.base_model, training.chat)
    return record_training(training, model, reference, sampler, steps)


def record_training(
    training: Training, model: Any, reference: Any, sampler: Any, steps: int
) -> Record:
    """Train `model` in place for so many steps, and return their record."""
    policy = build_policy(model, reference, training.settings, training.seed)
    watch = _Watch(training, policy)
    watched = replace(training, stages=watch.stages(training.stages), processes=watch)
    state = start(watched, policy, sampler)
    for _ in range(steps):
        state, _ = train_step(watched, state, watch)
    saved = training.stages.saved_weights(policy)
    # the whole weights that evaluation makes of what was saved
    if is_adapter(saved):
        base = replace(policy, adapter=None).weights()
        saved = Adapter(policy.adapter.peft_config[ADAPTER_NAME], {**saved}).on(base)
    watch.record.saved = {name: tensor.detach().float().clone() for name, tensor in saved.items()}
    return watch.record


class _Watch(Processes, Observer):
    """One process that takes note of what passes through it, through the stages and from step to step."""

    def __init__(self, training: Training, policy: Policy) -> None:
        self._training, self._policy = training, policy
        self._update = Update()
        self._micros: list[MicroBatch] = []
        self._rewards: Tensor | None = None
        self._sampled_with = 0
        names = dict(policy.model.named_parameters())
        self.record = Record(
            trainer="own",
            settings=settings_of(training.settings, training.environment, training.chat),
            tokenizer=training.chat.tokenizer,
            tools=list(training.environment.tools) or None,
            build=partial(plain_module, policy.model),
            scalings=adapters_of(policy.model),
            trainable=tuple(name for name, tensor in names.items() if tensor.requires_grad),
        )
        self._weights = Snapshots(policy.model, self.record)
        self._weights.take()
        self.record.reference = self._reference()

    def _reference(self) -> Mapping[str, Tensor] | None:
        if self._policy.reference is not None:
            return {n: kept(t) for n, t in self._policy.reference.named_parameters()}
        return plain_weights(self.record.weights[0], {}) if self.record.scalings else None

    # --- stages and processes

    def stages(self, stages: Stages) -> Stages:
        """Return the same stages, watched."""
        self._stages = stages
        return replace(
            stages,
            advantages=self._advantages,
            logprobs=self._logprobs,
            importance_weights=self._importance_weights,
            optimizer_step=self._step,
        )

    def _advantages(self, rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        if self._rewards is None:
            self._rewards = kept(rewards).flatten()
        return self._stages.advantages(rewards, scaling, epsilon)

    def _logprobs(
        self, model: Any, ids: Tensor, attention: Tensor, wanted: Tensor, *given: Any, **named: Any
    ) -> Tensor:
        found = self._stages.logprobs(model, ids, attention, wanted, *given, **named)
        if not found.requires_grad:
            return found
        forward = Forward(ids, attention.long())
        number = len(self.record.generations)
        micro = MicroBatch(number, _EMPTY, self._weights.take(), forward)
        micro.logprobs = kept(found)
        self._micros.append(micro)

        def keep(gradient: Tensor) -> None:
            micro.grad_logprobs = kept(gradient)

        found.register_hook(keep)  # type: ignore[no-untyped-call]
        return found

    def _importance_weights(self, *given: Any) -> Tensor:
        found = self._stages.importance_weights(*given)
        micro = self._micros[-1]
        micro.given = replace(micro.given, importance_weights=kept(found))
        return found

    def backward(self, loss: Tensor) -> None:
        self._micros[-1].loss = float(loss.detach())
        super().backward(loss)

    def clip(self, policy: Policy, norm: float) -> float:
        self._update.gradients = gradients_of(self._policy.model, self.record)
        return super().clip(policy, norm)

    def _step(self, optimizer: Optimizer) -> None:
        update = self._update
        update.micro_batches, self._micros = self._micros, []
        update.before = self._weights.take()
        update.clipped = gradients_of(self._policy.model, self.record)
        names = names_of(self._policy.model)
        update.optimizer = type(optimizer).__name__
        update.groups = groups_of(optimizer.param_groups, names)
        update.state = state_of(optimizer, names, self.record)
        self._stages.optimizer_step(optimizer)
        update.after = self._weights.take()
        update.state_after = state_of(optimizer, names, self.record)
        self.record.updates.append(update)
        self._update = Update(before=update.after)

    # --- a step

    def begin_step(self, state: TrainerState) -> None:
        self._sampled_with, self._rewards = self._weights.take(), None

    def end_step(self, step: Step) -> Progress:
        """Put the step's rollouts, batch and micro-batches into the record."""
        trained, count = step.experience, len(step.rollouts)
        split = Split(trained)
        settings = self._training.settings
        prompts, prompt_mask, completions, real = split.sequences()
        batch = Batch(
            prompt_ids=prompts,
            prompt_mask=prompt_mask,
            completion_ids=completions,
            completion_mask=real,
            loss_mask=split.of(trained.loss.long()).bool(),
            advantages=trained.advantages,
            old=split.of(step.update.logprobs),
            reference=None if step.reference is None else split.of(step.reference),
            sampler=split.of(trained.sampler),
            rows=torch.arange(count),
        )
        number = len(self.record.generations)
        updates = (each for each in self.record.updates if each.micro_batches)
        own = [each for each in updates if each.micro_batches[0].generation == number]
        parts = torch.arange(count).tensor_split(settings.gradient_accumulation_steps)
        for update in own:
            for micro, rows in zip(update.micro_batches, parts, strict=True):
                _cut(micro, split, batch, rows)
        given = (m.given.importance_weights for u in own[:1] for m in u.micro_batches)
        if corrected := [weights for weights in given if weights is not None]:
            batch = replace(batch, importance_weights=torch.cat(corrected))
        self.record.generations.append(
            Generation(
                rows=[self._row(rollout) for rollout in step.rollouts],
                weights=self._sampled_with,
                calls=_calls(step.rollouts, self._used(), self._sampled_with),
                messages=[_messages(rollout) for rollout in step.rollouts],
                reward_calls=self._scored(step.rollouts),
                rewards=self._used_rewards(step.rollouts),
                batch=batch,
            )
        )
        return super().end_step(step)

    def _row(self, rollout: Rollout) -> dict[str, Any]:
        return {"prompt": self._training.environment.messages(rollout.row), "id": rollout.row.id}

    def _used(self) -> Sampling:
        most = self._stages.max_new_tokens(self._training.environment)
        return replace(self.record.settings.sampling, max_new_tokens=most)

    def _scored(self, rollouts: Sequence[Rollout]) -> list[RewardCall]:
        """Return what the stage says of the rollouts, twice, and what evaluation does."""
        returned, again, evaluated = (
            self._rewards_by(score, rollouts)
            for score in (self._stages.score, self._stages.score, Stages().score)
        )
        return [
            RewardCall(name, n, {}, returned[n], again[n], evaluated=evaluated[n])
            for n, name in enumerate(self._parts or ("score",))
        ]

    def _rewards_by(
        self, score: Callable[..., Mapping[str, float]], rollouts: Sequence[Rollout]
    ) -> list[list[float]]:
        """Return what is rewarded, by part where parts are scaled one by one, of each rollout."""
        environment = self._training.environment
        scores = [score(rollout, environment) for rollout in rollouts]
        if self._parts:
            return [[each[name] for each in scores] for name in self._parts]
        pairs = zip(rollouts, scores, strict=True)
        return [[environment.reward(rollout.row, each) for rollout, each in pairs]]

    @property
    def _parts(self) -> tuple[str, ...]:
        """Return the parts of the reward that advantages are made of; none where these are of their sum."""
        in_parts = self._training.settings.multi_objective_aggregation == "normalize_then_sum"
        return tuple(self._training.environment.weights) if in_parts else ()

    def _used_rewards(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Return what advantages were made of, [B, K]."""
        if self._parts:
            return torch.tensor(self._rewards_by(self._stages.score, rollouts)).T
        assert self._rewards is not None
        return self._rewards[:, None]


_NOTHING = torch.zeros(0, 0)
# until the step is over and its batch is known
_EMPTY = Batch(_NOTHING, _NOTHING, _NOTHING, _NOTHING, loss_mask=_NOTHING, advantages=_NOTHING)


def _cut(micro: MicroBatch, split: Split, batch: Batch, rows: Tensor) -> None:
    """Put what the micro-batch was given into it, in the places of completions."""
    assert micro.forward is not None
    assert micro.logprobs is not None
    places = split.places()[rows]
    weights = micro.given.importance_weights
    weights = None if weights is None else gathered(weights, places)
    micro.given = replace(batch.of_rows(rows), importance_weights=weights)
    micro.forward = replace(micro.forward, places=places)
    micro.logprobs = gathered(micro.logprobs, places)
    if micro.grad_logprobs is not None:
        micro.grad_logprobs = gathered(micro.grad_logprobs, places)


def _calls(rollouts: Sequence[Rollout], used: Sampling, weights: int) -> list[Call]:
    """Return the sampler's calls, one a turn."""
    turns = [list(_turns(rollout)) for rollout in rollouts]
    calls = []
    for each in zip_longest(*turns):
        prompts, outputs, logprobs = zip(*filter(None, each), strict=True)
        calls.append(Call([*prompts], [*outputs], [*logprobs], used, weights))
    return calls


def _turns(rollout: Rollout) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Yield what the sampler read, what it wrote, and with which log-probabilities, turn by turn."""
    read: list[int] = []
    for segment in rollout.segments:
        if segment.role == "assistant":
            yield list(read), segment.ids, segment.logprobs
        read += segment.ids


def _messages(rollout: Rollout) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for segment in rollout.segments[1:]:
        role = segment.role
        messages += [{"role": role, "content": text} for text in segment.texts]
    return messages


# --- sequences as a record has them


class Split:
    """Cuts sequences, [B, T], padded on the right, into prompts and completions: these begin where the model first wrote."""

    def __init__(self, batch: Sequences) -> None:
        self._batch = batch
        self.starts = batch.sampled.int().argmax(1)
        self.lengths = batch.real.sum(1) - self.starts
        self.width = int(self.lengths.max())

    def places(self) -> Tensor:
        """Return where each token of a completion stands in its sequence, [B, C], 0 for padding."""
        steps = torch.arange(self.width)
        return (self.starts[:, None] + steps) * (steps < self.lengths[:, None])

    def of(self, values: Tensor) -> Tensor:
        """Return the completions' part of values, [B, T] -> [B, C]; padding is 0."""
        return gathered(values, self.places())

    def sequences(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return prompts, padded on the left, and their mask, [B, P]; completions and their mask, [B, C]."""
        rows = zip(self._batch.ids, self.starts.tolist(), strict=True)
        prompts = [ids[None, :start] for ids, start in rows]
        ids = stacked(prompts, "prompts")
        mask = stacked([torch.ones_like(each) for each in prompts], "prompts")
        real = (self.places() > 0).long()
        return ids, mask, self.of(self._batch.ids), real


def gathered(values: Tensor, places: Tensor) -> Tensor:
    """Return values, [b, t], at these places, [b, C]; 0 where there are none."""
    inside = (places > 0) & (places < values.shape[1])
    return values.gather(1, places.clamp(max=values.shape[1] - 1)) * inside
