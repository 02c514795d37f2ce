"""Fills a record from a live GRPOTrainer of TRL, which computes as it would without it.

Each seam is used where the release has it (0.14 to 1.16 were tried); what is missing is said in the record's notes,
and the segments that need it are not seen. Private methods are wrapped on the instance, so that what a subclass
overrides is inside.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.keeping import (
    Snapshots,
    kept,
)
from rlvr_debug.recorders.pieces import Zero, cut_of, local, places_of, shape_of
from rlvr_debug.recorders.ranks import digest, part_of
from rlvr_debug.recorders.trl.beforehand import Needs, large_note, needs_of, version_note
from rlvr_debug.recorders.trl.first_releases import at_once, sampled_batch
from rlvr_debug.recorders.trl.kept import (
    ROW,
    adapters_of,
    dropouts_of,
    kept_batch,
    kept_row,
    plain_module,
    some_elements,
    without_dropout,
)
from rlvr_debug.recorders.trl.losses import Watching
from rlvr_debug.recorders.trl.overrides import overrides_of
from rlvr_debug.recorders.trl.reward_calls import RewardWatch, calls_functions
from rlvr_debug.recorders.trl.sampler_calls import (
    answered,
    function_calls,
    trained_calls,
    watch_generate,
)
from rlvr_debug.recorders.trl.saving import saved_weights
from rlvr_debug.recorders.trl.seams import Hook, Seams, leave_out
from rlvr_debug.recorders.trl.settings import (
    asked_settings,
    chosen_arguments,
    decayed_names,
)
from rlvr_debug.recorders.trl.steps import StepWatch
from rlvr_debug.replay.adapters import plain_weights
from rlvr_debug.replay.declared import Own, declared
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Generation,
    MicroBatch,
    Record,
)
from rlvr_debug.replay.settings import Settings

__all__ = ["Recorder"]

# trained weights, from which on a model is large: only a part of it is looked at
_LARGE = 50_000_000
_ROWS = 4  # of each batch of a large model
# segments that a dropout shows in
_NOISY = (
    *("sampler", "old log-probabilities", "reference log-probabilities"),
    *("policy log-probabilities", "gradient"),
)
_LOGPROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class Recorder(StepWatch):
    """Records a trainer's steps from `attach` to `detach`; a callback tells it of each step of the optimizer.

    rewards: whether reward functions are called again, at the end. steps: optimizer steps; where a generation serves
    several, up to the first of the second generation are recorded, and at most `most`. own: whether the user made the
    optimizer; None: if there is one before it trains. still: whether dropout is switched off while it records. beat: is
    told of each call that is watched.
    """

    _library = "trl"

    def __init__(
        self,
        trainer: Any,
        *,
        steps: int = 3,
        most: int = 8,
        rewards: bool = True,
        own: bool | None = None,
        still: bool = True,
        beat: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(Seams(beat))
        # digests of the state that tokens are drawn with, by generation
        self.random: list[str] = []
        self._trainer, self._steps, self._most = trainer, steps, most
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._still = still
        self._own = trainer.optimizer is not None if own is None else own
        self._rewards = RewardWatch(self._seams, again=rewards)
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
            decayed=decayed_names(trainer, self._model, own=self._own),
            trainable=tuple(n for n, p in self._model.named_parameters() if p.requires_grad),
            own=Own(
                self._seams.safely("the check", overrides_of, trainer, self._library) or {},
                declared(),
                chosen_arguments(trainer.args),
            ),
        )
        record.notes += filter(None, [version_note(self._library, version(self._library))])
        sizes = {
            n: shape_of(p).numel() for n, p in self._model.named_parameters() if p.requires_grad
        }
        if sum(sizes.values()) >= _LARGE:
            record.elements, record.rows = some_elements(sizes), _ROWS
            record.notes.append(large_note(_ROWS, self._needs()))
        if record.settings.dropouts:
            said = f"{record.settings.dropouts} dropouts are"
            if self._still:
                record.notes.append(f"{said} switched off in the recorded steps")
            else:
                why = f"{said} on, whose noise cannot be drawn again"
                record.unseen = dict.fromkeys(_NOISY, why)
        return record

    def _needs(self) -> Needs:
        """Return what the check of a large model needs beside the script."""
        sizes = [(shape_of(p).numel(), p.requires_grad) for p in self._model.parameters()]
        words = getattr(self._model.config, "vocab_size", 0)
        logits = _ROWS * self._trainer.args.max_completion_length * words
        trained = sum(size for size, moves in sizes if moves)
        return needs_of(sum(size for size, _ in sizes), trained, logits, self._steps)

    def _asked(self, dropouts: int) -> Settings:
        """Return what the trainer was told."""
        return asked_settings(self._trainer, self._model, dropouts, own=self._own)

    def _tools(self) -> list[Any] | None:
        return getattr(self._trainer, "tools", None) or None

    def _given(self, inputs: Mapping[str, Any]) -> Batch:
        """Return what the loss is computed from."""
        return kept_batch(inputs)

    def _reference(self) -> Mapping[str, Tensor] | None:
        if getattr(self._trainer, "ref_model", None) is not None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.ref_model)
            return {name: kept(local(parameter)) for name, parameter in model.named_parameters()}
        if not self.record.scalings:
            return None
        # the adapter off, or a copy of the one that training began with
        first = {
            name: {"ref": module.scaling["ref"]}
            for name, module in self._model.named_modules()
            if hasattr(module, "lora_A") and "ref" in getattr(module, "scaling", {})
        }
        if self.cut.weights:
            self.cut = replace(self.cut, adapter=first)
            return None
        return plain_weights(self.record.weights[0], first)

    # --- seams

    def attach(self) -> None:
        """Begin to watch."""
        trainer, seams = self._trainer, self._seams
        if self._still:
            seams.undone_by(without_dropout(self._model))
        place, name = calls_functions(trainer)
        seams.around("rewards", place, name, self._scoring)
        # before 0.16 inputs were prepared in one piece, and before 0.15 not even that
        made = "_generate_and_score_completions"
        self._around(
            "generations", made if hasattr(trainer, made) else "_prepare_inputs", self._generation
        )
        self._around("rewards", "_calculate_rewards", self._used_rewards)
        if getattr(trainer, "rollout_func", None) is not None:
            self._around("samples", "_generate", self._rolled)
        self._around("losses", "compute_loss", self._loss)
        found = next((name for name in _LOGPROBS if hasattr(trainer, name)), None)
        if found:
            self._around("log-probabilities", found, self._logprobs)
        else:
            self.record.notes.append("this release has no method for log-probabilities")
        ends = self.record.settings.sampling.ends
        noted = seams.guarded("samples", self._called)
        seams.undone_by(watch_generate(lambda: "generation" in self._phase, ends, noted))
        engine = getattr(trainer, "vllm_generation", None)
        if engine is not None:
            seams.around("samples", engine, "generate", self._engine)
        self._watch_passes()

    def _watch_passes(self) -> None:
        """Watch the policy's forward passes, and backward passes."""
        forward = self._seams.guarded("forward passes", self._forward)
        hook = self._model.register_forward_pre_hook(forward, with_kwargs=True)
        self._seams.undone_by(hook.remove)
        self._seams.around("gradients", self._trainer.accelerator, "backward", self._backward)

    def _around(self, what: str, name: str, hook: Hook) -> None:
        if hasattr(self._trainer, name):
            self._seams.around(what, self._trainer, name, hook)
        else:
            self.record.notes.append(f"this release has no {name}")

    def begin(self) -> None:
        """Take note of what the first step begins with: a run that is resumed has read it by now."""
        self._seams.safely("weights", self._begin)

    def _begin(self) -> None:
        record = self.record
        record.settings = replace(record.settings, first_step=self._trainer.state.global_step)
        engine = getattr(self._trainer.accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None and hasattr(engine.engine.optimizer, "optimizer"):
            rank = self._trainer.accelerator.process_index
            self._zero = Zero(engine.engine.optimizer, self._model, rank)
            self._seams.around("gradients", engine.engine, "step", self._engine_step)
            self._seams.around("gradients", self._zero.optimizer, "step", self._inner_step)
        for module in self._model.modules():
            if hasattr(module, "reshard"):  # FSDP2's, where a forward pass has left it whole
                module.reshard()
        self.cut = cut_of(self._model, self._zero, record.elements)
        if self.cut.moved:
            record.elements = places_of(self._model, self._zero, record.elements)
        if self.cut.weights:
            record.weights.clear()
            self._weights = Snapshots(self._model, record)
        if self._weights.take() and not self.cut.weights:
            del record.weights[0]
        record.reference = self._reference()

    def undo(self) -> None:
        """Stop watching."""
        self._seams.undo()

    def detach(self) -> None:
        """Stop watching, and complete the record."""
        self._seams.undo()
        self._seams.safely("rewards", self._rewards.finish, self.record)
        state, args = self._trainer.state, self._trainer.args
        warmup = args.get_warmup_steps(state.max_steps)
        self.record.settings = replace(
            self.record.settings, total_steps=state.max_steps, warmup_steps=warmup
        )
        leave_out(self.record, self._seams.failed)

    def part(self) -> Record:
        """Return the record, of several processes this one's part of it."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes < 2:
            return self.record
        return part_of(self.record, self.random, self.cut, main=accelerator.is_main_process)

    def take_saved(self) -> None:
        """Take note of what the trainer saves."""
        self.record.saved = self._seams.safely(
            "saved weights", saved_weights, self._trainer, self.record, self.cut
        )
        leave_out(self.record, self._seams.failed)

    def _generation(self, inputs: Any, *_: Any) -> Watching:
        if not self._trainer.model.training or at_once(self._trainer):
            return
        generation = Generation([kept_row(row) for row in inputs], self._weights.take())
        self.record.generations.append(generation)
        self.random.append(digest(torch.get_rng_state()))
        self._rewards.begin()
        with self._in("generation"):
            out = yield
        count, device = out["prompt_ids"].shape[0], out["prompt_ids"].device
        out[ROW] = torch.arange(count, device=device)  # it travels through the shuffle
        generation.batch = kept_batch(out)
        generation.reward_calls = self._rewards.calls
        generation.calls, unused = trained_calls(generation.calls, generation.batch)
        if unused:
            self.record.notes.append(f"{unused} rollouts were sampled and not trained on")

    def _rolled(self, *_: Any, **__: Any) -> Watching:
        """Have TRL call a watched rollout function; what the function can reach is itself."""
        trainer = self._trainer
        function = trainer.rollout_func

        def restore() -> None:
            trainer.rollout_func = function

        @functools.wraps(function)
        def watching(*given: Any, **named: Any) -> Any:
            restore()
            out = function(*given, **named)
            if "generation" in self._phase:
                self._seams.safely("samples", self._rolled_out, out)
            return out

        trainer.rollout_func = watching
        try:
            yield
        finally:
            restore()

    def _rolled_out(self, told: Mapping[str, Any]) -> None:
        generation = self.record.generations[-1]
        calls = function_calls(told, generation.calls, self._logprob_of)
        generation.calls = [replace(each, weights=self._weights.take()) for each in calls]

    def _logprob_of(self, ids: list[int], count: int) -> list[float]:
        """Return the policy's log-probabilities of a sequence's last tokens."""
        if self.cut.weights:
            raise InputError("the policy is cut up, and a forward pass takes all processes at once")
        device = next(self._model.parameters()).device
        given = torch.tensor([ids], device=device)
        with torch.no_grad(), torch.random.fork_rng():
            logits = self._model(input_ids=given).logits[0, -count - 1 : -1].float()
        chosen = logits.log_softmax(-1).gather(1, given[0, -count:, None])
        return [float(each) for each in chosen]

    def _scoring(self, trainer: Any, *_: Any, **__: Any) -> Watching:
        """Have TRL's own method call watched functions. What a user's code can reach are the functions themselves."""
        if trainer is not self._trainer or "generation" not in self._phase:
            return
        functions = trainer.reward_funcs

        def restore() -> None:
            trainer.reward_funcs = functions

        trainer.reward_funcs = self._rewards.watched(functions, restore)
        try:
            yield
        finally:
            restore()

    def _used_rewards(self, *given: Any, **named: Any) -> Watching:
        if self._phase != "generation":
            return
        generation = self.record.generations[-1]
        completions = named.get("completions", given[2] if len(given) > 2 else None)
        if completions and isinstance(completions[0], list):
            generation.messages = copy.deepcopy(list(completions))
        rewards = yield
        generation.rewards = kept(rewards)

    def _loss(self, _: Any, inputs: Any, *__: Any, **___: Any) -> Watching:
        if not torch.is_grad_enabled():
            return
        if at_once(self._trainer):
            yield from self._at_once(inputs)
        if at_once(self._trainer) or not self.record.generations:
            return
        # the same inputs as without the check: a method may go through them, or write to them
        rows = inputs.pop(ROW, None)
        given = self._given(inputs if rows is None else {**inputs, ROW: rows})
        self._begin_micro(MicroBatch(len(self.record.generations) - 1, given, self._weights.take()))
        try:
            with self._in("loss"):
                yield
        finally:
            if rows is not None:
                inputs[ROW] = rows

    def _at_once(self, inputs: Any) -> Watching:
        """Record a loss that generates and scores its own completions; what it makes of them is not seen."""
        weights = self._weights.take()
        generation = Generation(weights=weights)
        self.record.generations.append(generation)
        micro = MicroBatch(len(self.record.generations) - 1, sampled_batch([]), weights)
        self._begin_micro(micro)
        self._rewards.begin()
        with self._in("generation and loss"):
            yield
        generation.reward_calls = self._rewards.calls
        times = sum(len(call.outputs) for call in generation.calls) // len(inputs)
        generation.rows = [kept_row(row) for row in inputs for _ in range(times)]
        micro.given = sampled_batch(generation.calls, self.record.settings.pad_id)

    def _engine(self, *_: Any, **__: Any) -> Watching:
        """Take note of what an engine answers. What it has from transformers is among the calls by itself."""
        if "generation" not in self._phase:
            return
        calls = self.record.generations[-1].calls
        before = len(calls)
        out = yield
        if len(calls) == before:
            self._called(answered, *out[:3])

    def _called(self, make: Callable[..., Call], *told: Any) -> None:
        held = self.record.generations[-1].calls
        held.append(replace(make(*told), weights=self._weights.take()))
