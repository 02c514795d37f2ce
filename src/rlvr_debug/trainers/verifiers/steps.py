"""Fills a record from a released GRPOTrainer at work, which computes as it would without it.

Where the release's trainer is that of transformers, the seams are those of the recorder of TRL. Its own are the rollouts
that its environment processes, the shuffle of a batch, the advantages, and what the server is asked and answers.
Axes: B rollouts of a batch, b of a micro-batch, P tokens of a prompt, C of a completion, T of both.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.recorders.keeping import kept
from rlvr_debug.recorders.trl.live import watched
from rlvr_debug.recorders.trl.objects import ROW, without_dropout
from rlvr_debug.recorders.trl.recorder import Recorder
from rlvr_debug.recorders.trl.seams import Watching
from rlvr_debug.recorders.trl.settings import optimizer_settings, precision_of, sampling_of
from rlvr_debug.replay.record import Batch, Call, Generation, MicroBatch, Record, RewardCall
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.trainers.verifiers.server import Answered, Server, plain_message
from rlvr_debug.trainers.verifiers.task import Generated


@dataclass(frozen=True)
class _Layout:
    """Where the completions of a generation stand in its sequences, which are padded on the right: starts, lengths, [B]."""

    starts: Tensor
    lengths: Tensor

    def of_rows(self, rows: Tensor) -> _Layout:
        return _Layout(self.starts[rows], self.lengths[rows])


@dataclass(frozen=True)
class _Sampled:
    """A batch of rollouts that waits to be trained on, and what the server was asked for it."""

    made: Generated
    answered: Sequence[Answered]


class StepRecorder(Recorder):
    """Records all steps of a run. The environment calls `on_batch`."""

    _library = "verifiers"

    def __init__(
        self, trainer: Any, environment: Environment, stages: Stages, server: Server
    ) -> None:
        self._environment, self._stages = environment, stages
        super().__init__(trainer, steps=trainer.args.max_steps, most=0)
        self._answered: list[Answered] = []
        self._sampled: deque[_Sampled] = deque()
        self._submitted: deque[int] = deque()
        self._rewarded: deque[Tensor] = deque()
        # of each generation, beside its record
        self._layouts: list[_Layout] = []
        self._generated: list[Generated] = []
        self._references: dict[int, Tensor] = {}
        server.watch = self._answered.append

    def record_run(self) -> Record:
        record, _ = watched(self, self._trainer, self._trainer.train)
        for generation, made in zip(record.generations, self._generated, strict=True):
            generation.reward_calls = [self._scored(made)]
        return record

    # --- what is known before the first step

    def _asked(self, dropouts: int) -> Settings:
        return asked_settings(self._trainer, self._model, dropouts)

    def _tools(self) -> list[Any] | None:
        return list(self._environment.tools) or None

    # --- seams

    def attach(self) -> None:
        trainer = self._trainer
        self._seams.undone_by(without_dropout(self._model))
        self._around("rewards", "_compute_advantages", self._used_rewards)
        self._around("losses", "compute_loss", self._loss)
        self._around("log-probabilities", "_get_per_token_logps", self._logprobs)
        self._watch_passes()
        self._seams.around("weights", trainer.async_generator, "submit_batch", self._submitting)
        module, name = sys.modules[type(trainer).__module__], "shuffle_tensor_dict"
        shuffle = getattr(module, name)
        setattr(module, name, partial(self._batch_made, shuffle))
        self._seams.undone_by(partial(setattr, module, name, shuffle))

    def on_batch(self, made: Generated) -> None:
        """Take note of a batch of rollouts, and of all that was asked for it since the one before."""
        answered, self._answered[:] = list(self._answered), []
        self._sampled.append(_Sampled(made, answered))

    def _submitting(self, *_: Any) -> Watching:
        self._submitted.append(self._weights.take())
        yield

    def _used_rewards(self, rewards: Tensor) -> Watching:
        self._rewarded.append(kept(rewards))
        yield

    def _batch_made(self, inner: Callable[[Any], Any], tensors: Mapping[str, Any]) -> Any:
        """Take note of a batch before its shuffle, through which a tensor with the rows' numbers travels."""
        sampled = self._sampled.popleft()
        made, held = sampled.made, self._submitted.popleft()
        processed, count = sampled.made.processed, len(sampled.made.rollouts)
        self._generated.append(made)
        self._layouts.append(
            _Layout(
                torch.tensor([len(ids) for ids in processed.prompt_ids]),
                torch.tensor([len(ids) for ids in processed.completion_ids]),
            )
        )
        numbered = {**tensors, ROW: torch.arange(count, device=tensors["input_ids"].device)}
        self.record.generations.append(
            Generation(
                rows=[
                    {"prompt": prompt, "id": rollout.row.id, "answer": rollout.row.answer}
                    for prompt, rollout in zip(made.prompts, made.rollouts, strict=True)
                ],
                weights=self._weights.take(),
                calls=_calls(sampled.answered, held),
                messages=[
                    [plain_message(message) for message in completion]
                    for completion in made.completions
                ],
                rewards=self._rewarded.popleft()[:, None],
                batch=self._given(numbered),
            )
        )
        return inner(numbered)

    def _given(self, inputs: Mapping[str, Any]) -> Batch:
        rows, ids = inputs[ROW].cpu(), inputs["input_ids"].cpu()
        whole = self._layouts[-1]
        own, pad = whole.of_rows(rows), self.record.settings.pad_id
        width = int(whole.starts.max())
        before = own.starts[:, None] - width + torch.arange(width)
        places = self._places(rows)
        # the release has one mask for both, a fixed one a mask of its own for the loss
        counted = inputs.get("completion_mask", inputs["attention_mask"]).cpu()
        old = inputs["old_per_token_logps"]
        return Batch(
            prompt_ids=ids.gather(1, before.clamp(min=0)).where(before >= 0, pad),
            prompt_mask=(before >= 0).long(),
            completion_ids=ids.gather(1, places).where(places > 0, pad),
            completion_mask=(places > 0).long(),
            loss_mask=_at(counted, places).bool(),
            advantages=kept(inputs["advantages"]),
            old=None if old is None else _at(kept(old), places - 1),
            rows=rows,
        )

    def _places(self, rows: Tensor) -> Tensor:
        """Return where each token of the rows' completions stands, [b, C], 0 for padding."""
        whole = self._layouts[-1]
        own, steps = whole.of_rows(rows), torch.arange(int(whole.lengths.max()))
        return (own.starts[:, None] + steps) * (steps < own.lengths[:, None])

    def _like(self, *_: Any) -> int:
        return 1  # they are of whole sequences, and asked for once

    def _of_rows(self, *_: Any) -> None:
        """Leave a pass as it is: its rows are padded otherwise than the batch's, and `places` says where tokens stand."""

    def _logprobs(self, *given: Any, **named: Any) -> Watching:
        out = yield from super()._logprobs(*given, **named)
        if self._phase == "loss" and not out.requires_grad:
            self._references[id(self._micro)] = kept(out)
        return out

    # --- an update

    def end_step(self) -> bool:
        """Cut what is of whole sequences to their completions, and close the update."""
        micros = self._update.micro_batches
        for micro in micros:
            self._cut(micro)
        for number in {micro.generation for micro in micros}:
            self._join_reference(number, [each for each in micros if each.generation == number])
        self._references.clear()
        return super().end_step()

    def _cut(self, micro: MicroBatch) -> None:
        assert micro.given.rows is not None
        places = self._places(micro.given.rows)
        if micro.forward is not None:
            micro.forward = replace(micro.forward, places=places)
        if micro.logprobs is not None:
            micro.logprobs = _at(micro.logprobs, places - 1)
        if micro.grad_logprobs is not None:
            micro.grad_logprobs = _at(micro.grad_logprobs, places - 1)
        found = self._references.get(id(micro))
        if found is not None:
            micro.given = replace(micro.given, reference=_at(found, places - 1))

    def _join_reference(self, number: int, micros: Sequence[MicroBatch]) -> None:
        """Put the reference's log-probabilities, which each loss computes for itself, into the generation's batch."""
        generation = self.record.generations[number]
        batch = generation.batch
        parts = [
            (micro.given.rows, micro.given.reference)
            for micro in micros
            if micro.given.reference is not None and micro.given.rows is not None
        ]
        if batch is None or batch.reference is not None or not parts:
            return
        joined = torch.zeros(batch.completion_ids.shape)
        for rows, found in parts:
            joined[rows] = found
        generation.batch = replace(batch, reference=joined)

    def _scored(self, made: Generated) -> RewardCall:
        """Return what the reward functions said together, what they say again, and what evaluation does."""

        def rewards(scores: Sequence[Mapping[str, float]]) -> list[float]:
            pairs = zip(made.rollouts, scores, strict=True)
            return [self._environment.reward(rollout.row, each) for rollout, each in pairs]

        def again(stages: Stages) -> list[float]:
            return rewards([stages.score(each, self._environment) for each in made.rollouts])

        said, evaluated = rewards(made.scores), again(Stages())
        return RewardCall("rubric", 0, {}, said, again=again(self._stages), evaluated=evaluated)


def _calls(answered: Sequence[Answered], weights: int) -> list[Call]:
    """Return the server's answers, one call a turn. weights: those that the trainer held when it asked for them."""
    calls = []
    for turn in sorted({each.turn for each in answered}):
        own = sorted((each for each in answered if each.turn == turn), key=lambda each: each.slot)
        [used] = {Sampling(each.temperature, max_new_tokens=each.limit) for each in own}
        calls.append(
            Call(
                [each.prompt for each in own],
                [each.sample.ids for each in own],
                [each.sample.logprobs for each in own],
                used,
                weights,
                [each.slot for each in own],
            )
        )
    return calls


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values, [b, T], at these places, [b, C]; 0 where there are none."""
    inside = (places >= 0) & (places < values.shape[1])
    found = values.gather(1, places.clamp(0, values.shape[1] - 1))
    return found.where(inside, torch.zeros((), dtype=values.dtype))


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def asked_settings(trainer: Any, model: Any, dropouts: int) -> Settings:
    """Return what the release's trainer was told; the rubric's weights are in the one reward that it hands the trainer."""
    args, tokenizer = trainer.args, trainer.processing_class
    return Settings(
        group_size=args.num_generations,
        sampling=sampling_of(
            {
                **{name: getattr(args, name) for name in _SAMPLING},
                "max_new_tokens": trainer.max_tokens,
            }
        ),
        max_completion_length=trainer.max_seq_len,
        num_iterations=args.num_iterations,
        micro_batches=args.gradient_accumulation_steps,
        steps_per_generation=args.gradient_accumulation_steps,
        scale_rewards="group" if args.scale_rewards else "none",
        mask_truncated_completions=args.mask_truncated_completions,
        loss_type=args.loss_type,
        kl_beta=args.beta,
        clip=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        delta=args.delta,
        **optimizer_settings(trainer, own=False),
        first_step=trainer.state.global_step,
        max_grad_norm=args.max_grad_norm,
        precision=precision_of(args, model),
        eos_ids=(tokenizer.eos_token_id,),
        pad_id=tokenizer.pad_token_id,
        dropouts=dropouts,
    )
