"""Fills a record from a live GRPOTrainer of TRL, which computes as it would without it.

Each seam is used where the release has it (0.14 to 1.16 were tried); what is missing is said in the record's notes,
and the segments that need it are not seen. Private methods are wrapped on the instance, so that what a subclass
overrides is inside.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.adapters import plain_weights
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Forward,
    Generation,
    MicroBatch,
    Record,
    Update,
)
from rlvr_debug.replay.settings import Settings
from rlvr_debug.trainers.keeping import (
    Snapshots,
    gradients_of,
    groups_of,
    kept,
    names_of,
    state_of,
    whole_norms,
)
from rlvr_debug.trainers.trl.beforehand import Needs, large_note, needs_of, version_note
from rlvr_debug.trainers.trl.first_releases import at_once, sampled_batch
from rlvr_debug.trainers.trl.kept import (
    ROW,
    adapters_of,
    dropouts_of,
    kept_batch,
    kept_row,
    plain_module,
    some_elements,
    without_dropout,
)
from rlvr_debug.trainers.trl.reward_calls import RewardWatch
from rlvr_debug.trainers.trl.sampler_calls import in_one, watch_engine, watch_generate
from rlvr_debug.trainers.trl.settings import asked_settings, decayed_names

__all__ = ["Recorder"]

# trained weights, from which on a model is large: only a part of it is looked at
_LARGE = 50_000_000
_ROWS = 4  # of each batch of a large model
_LOGPROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class Recorder:
    """Records a trainer's steps from `attach` to `detach`; a callback tells it of each step of the optimizer.

    rewards: whether reward functions are called again, at the end. steps: optimizer steps; where a generation serves
    several, up to the first of the second generation are recorded, and at most `most`.
    """

    _library = "trl"

    def __init__(
        self, trainer: Any, *, steps: int = 3, most: int = 8, rewards: bool = True
    ) -> None:
        self._trainer, self._steps, self._most = trainer, steps, most
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._phase = ""
        self._update = Update()
        self._micro: MicroBatch | None = None
        self._undo: list[Callable[[], None]] = []
        self._rewards = RewardWatch(again=rewards)
        self._norms: tuple[float, float] | None = None
        self.record = self._begun()
        self._weights = Snapshots(self._model, self.record)
        self._weights.take()
        self.record.reference = self._reference()

    # --- what is known before the first step

    def _begun(self) -> Record:
        trainer = self._trainer
        record = Record(
            trainer=f"{self._library} {version(self._library)}",
            settings=self._asked(len(dropouts_of(self._model))),
            tokenizer=trainer.processing_class,
            tools=self._tools(),
            build=functools.partial(plain_module, self._model),
            scalings=adapters_of(self._model),
            decayed=decayed_names(trainer, self._model),
            trainable=tuple(n for n, p in self._model.named_parameters() if p.requires_grad),
        )
        record.notes += filter(None, [version_note(self._library, version(self._library))])
        sizes = {name: p.numel() for name, p in self._model.named_parameters() if p.requires_grad}
        if sum(sizes.values()) >= _LARGE:
            record.elements, record.rows = some_elements(sizes), _ROWS
            record.notes.append(large_note(_ROWS, self._needs()))
        if record.settings.dropouts:
            record.notes.append(
                f"{record.settings.dropouts} dropouts are switched off in the recorded steps"
            )
        return record

    def _needs(self) -> Needs:
        """Return what the check of a large model needs beside the script."""
        sizes = [(p.numel(), p.requires_grad) for p in self._model.parameters()]
        words = getattr(self._model.config, "vocab_size", 0)
        logits = _ROWS * self._trainer.args.max_completion_length * words
        trained = sum(size for size, moves in sizes if moves)
        return needs_of(sum(size for size, _ in sizes), trained, logits, self._steps)

    def _asked(self, dropouts: int) -> Settings:
        """Return what the trainer was told."""
        return asked_settings(self._trainer, self._model, dropouts)

    def _tools(self) -> list[Any] | None:
        return getattr(self._trainer, "tools", None) or None

    def _given(self, inputs: Mapping[str, Any]) -> Batch:
        """Return what the loss is computed from."""
        return kept_batch(inputs)

    def _reference(self) -> Mapping[str, Tensor] | None:
        if getattr(self._trainer, "ref_model", None) is not None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.ref_model)
            return {name: kept(parameter) for name, parameter in model.named_parameters()}
        if not self.record.scalings:
            return None
        # the adapter off, or a copy of the one that training began with
        first = {
            name: {"ref": module.scaling["ref"]}
            for name, module in self._model.named_modules()
            if hasattr(module, "lora_A") and "ref" in getattr(module, "scaling", {})
        }
        return plain_weights(self.record.weights[0], first)

    # --- seams

    def attach(self) -> None:
        """Begin to watch."""
        trainer = self._trainer
        self._undo.append(without_dropout(self._model))
        # before 0.16 inputs were prepared in one piece, and before 0.15 not even that
        made = "_generate_and_score_completions"
        self._wrap(made if hasattr(trainer, made) else "_prepare_inputs", self._generation)
        self._wrap("_calculate_rewards", self._used_rewards)
        self._wrap("compute_loss", self._loss)
        found = next((name for name in _LOGPROBS if hasattr(trainer, name)), None)
        if found:
            self._wrap(found, self._logprobs)
        else:
            self.record.notes.append("this release has no method for log-probabilities")
        functions = list(trainer.reward_funcs)
        for index, function in enumerate(functions):
            trainer.reward_funcs[index] = self._rewards.watched(function, index)

        def restore() -> None:
            trainer.reward_funcs[:] = functions

        self._undo.append(restore)
        hook = self._model.register_forward_pre_hook(self._forward, with_kwargs=True)
        self._undo.append(hook.remove)
        ends = self.record.settings.sampling.ends
        self._undo.append(watch_generate(lambda: "generation" in self._phase, ends, self._called))
        engine = getattr(trainer, "vllm_generation", None)
        if engine is not None:
            self._undo.append(watch_engine(engine, self._calls, self._called))
        self._undo.append(self._watch_backward())

    def begin(self) -> None:
        """Take note of what the first step begins with: a run that is resumed has read it by now."""
        record = self.record
        record.settings = replace(record.settings, first_step=self._trainer.state.global_step)
        if self._weights.take():
            del record.weights[0]
            record.reference = self._reference()

    def detach(self) -> Record:
        """Stop watching, and return the record."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._rewards.finish(self.record)
        state, args = self._trainer.state, self._trainer.args
        warmup = args.get_warmup_steps(state.max_steps)
        self.record.settings = replace(
            self.record.settings, total_steps=state.max_steps, warmup_steps=warmup
        )
        return self.record

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        trainer = self._trainer
        inner = getattr(trainer, name, None)
        if inner is None:
            self.record.notes.append(f"this release has no {name}")
            return
        own = name in vars(trainer)
        setattr(trainer, name, functools.partial(around, inner))

        def restore() -> None:
            if own:
                setattr(trainer, name, inner)
            else:
                delattr(trainer, name)

        self._undo.append(restore)

    def _generation(self, inner: Callable[..., Any], inputs: Any, *given: Any) -> Any:
        if not self._trainer.model.training or at_once(self._trainer):
            return inner(inputs, *given)
        rows = [kept_row(row) for row in inputs]
        generation = Generation(rows, self._weights.take())
        self.record.generations.append(generation)
        self._rewards.begin()
        with self._in("generation"):
            out = inner(inputs, *given)
        count = out["prompt_ids"].shape[0]
        out[ROW] = torch.arange(
            count, device=out["prompt_ids"].device
        )  # it travels through the shuffle
        generation.calls = in_one(generation.calls, len(rows))
        generation.batch = kept_batch(out)
        generation.reward_calls = self._rewards.calls
        return out

    def _used_rewards(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if self._phase != "generation":
            return inner(*given, **named)
        generation = self.record.generations[-1]
        completions = named.get("completions", given[2] if len(given) > 2 else None)
        if completions and isinstance(completions[0], list):
            generation.messages = copy.deepcopy(list(completions))
        rewards = inner(*given, **named)
        generation.rewards = kept(rewards)
        return rewards

    def _loss(
        self, inner: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any
    ) -> Any:
        if torch.is_grad_enabled() and at_once(self._trainer):
            return self._at_once(inner, model, inputs, *given, **named)
        if not torch.is_grad_enabled() or not self.record.generations:
            return inner(model, inputs, *given, **named)
        micro = MicroBatch(
            len(self.record.generations) - 1, self._given(inputs), self._weights.take()
        )
        self._micro = micro
        self._update.micro_batches.append(micro)
        # the same inputs as without the check: a method may go through them, or write to them
        rows = inputs.pop(ROW, None)
        try:
            with self._in("loss"):
                return inner(model, inputs, *given, **named)
        finally:
            if rows is not None:
                inputs[ROW] = rows

    def _at_once(
        self, inner: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any
    ) -> Any:
        """Record a loss that generates and scores its own completions; what it makes of them is not seen."""
        generation = Generation(weights=self._weights.take())
        self.record.generations.append(generation)
        micro = MicroBatch(len(self.record.generations) - 1, sampled_batch([]), generation.weights)
        self._micro = micro
        self._update.micro_batches.append(micro)
        self._rewards.begin()
        with self._in("generation and loss"):
            loss = inner(model, inputs, *given, **named)
        generation.reward_calls = self._rewards.calls
        times = sum(len(call.outputs) for call in generation.calls) // len(inputs)
        generation.rows = [kept_row(row) for row in inputs for _ in range(times)]
        micro.given = sampled_batch(generation.calls, self.record.settings.pad_id)
        return loss

    def _logprobs(self, inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        out = inner(*given, **named)
        micro = self._micro
        if "loss" not in self._phase or micro is None:
            return out
        values = (
            [*out.values()]
            if isinstance(out, dict)
            else list(out)
            if isinstance(out, tuple)
            else [out]
        )
        logprobs = values[0]
        entropies = values[1] if len(values) > 1 else None
        if isinstance(logprobs, Tensor) and logprobs.requires_grad:
            micro.logprobs = kept(logprobs)
            logprobs.register_hook(lambda gradient: _add(micro, "grad_logprobs", gradient))  # type: ignore[no-untyped-call]
        if isinstance(entropies, Tensor):
            micro.entropies = kept(entropies)
            if entropies.requires_grad:
                entropies.register_hook(lambda gradient: _add(micro, "grad_entropies", gradient))  # type: ignore[no-untyped-call]
        return out

    def _forward(self, _: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        micro = self._micro
        if "loss" in self._phase and micro is not None and torch.is_grad_enabled():
            ids = named.get("input_ids", given[0] if given else None)
            tensors = (ids, named.get("attention_mask"), named.get("position_ids"))
            micro.forward = Forward(*(None if t is None else kept(t) for t in tensors))  # type: ignore[arg-type]

    def _calls(self) -> list[Call] | None:
        return self.record.generations[-1].calls if "generation" in self._phase else None

    def _called(self, call: Call) -> None:
        self.record.generations[-1].calls.append(replace(call, weights=self._weights.take()))

    def _watch_backward(self) -> Callable[[], None]:
        accelerator = self._trainer.accelerator
        inner = accelerator.backward

        def backward(loss: Tensor, *given: Any, **named: Any) -> None:
            if self._micro is not None:
                self._micro.loss = float(loss.detach())
            inner(loss, *given, **named)
            if self._update.micro_batches:
                self._update.gradients = gradients_of(self._model, self.record)
                if self.record.elements and getattr(accelerator, "sync_gradients", True):
                    self._norms = whole_norms(self._model)

        accelerator.backward = backward

        def restore() -> None:
            del accelerator.backward

        return restore

    @contextmanager
    def _in(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    # --- the optimizer

    def before_step(self) -> None:
        """Take note of what the optimizer reads."""
        update = self._update
        update.before = self._weights.take()
        micros = update.micro_batches
        update.touched = bool(micros) and update.before != micros[-1].weights
        update.clipped = gradients_of(self._model, self.record)
        if self._norms:
            before, summed = self._norms
            update.norms, self._norms = (before, whole_norms(self._model)[0], summed), None
        optimizer, names = self._optimizer(), names_of(self._model)
        update.optimizer = type(optimizer).__name__
        update.groups = groups_of(optimizer, names)
        update.state = state_of(optimizer, names, self.record)

    def after_step(self) -> None:
        """Take note of what the optimizer left."""
        self._update.after = self._weights.take()
        names = names_of(self._model)
        self._update.state_after = state_of(self._optimizer(), names, self.record)

    def end_step(self) -> bool:
        """Close the update; return whether all that is wanted was recorded."""
        if self._update.micro_batches:
            self.record.updates.append(self._update)
        self._update, self._micro = Update(before=self._update.after), None
        updates = self.record.updates
        trained = {micro.generation for update in updates for micro in update.micro_batches}
        enough = len(updates) >= self._steps and len(trained) >= min(2, self._steps)
        return enough or len(updates) >= max(self._most, self._steps)

    def _optimizer(self) -> Any:
        optimizer = self._trainer.optimizer
        return getattr(optimizer, "optimizer", optimizer)


def _add(micro: MicroBatch, name: str, gradient: Tensor) -> None:
    """Keep a gradient. Two parts of a loss add up; the same pass made again is none of the loss, but of the gradient."""
    before, gradient = getattr(micro, name), kept(gradient)
    if before is None or not torch.equal(before, gradient):
        setattr(micro, name, gradient if before is None else before + gradient)
