"""Fills a record from a live GRPOTrainer of TRL, which computes as it would without it.

Each seam is used where the release has it (0.14 to 1.16 were tried). Private methods are wrapped on the instance, so that
what a subclass overrides is inside.
"""

import copy
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.keeping import (
    Snapshots,
    Zero,
    cut_of,
    kept,
    local,
    own_name,
    parameters_of,
    place_pieces,
    places_of,
    shape_of,
)
from rlvr_debug.recorders.ranks import APART, part_of
from rlvr_debug.recorders.trl import objects, sampler_calls, settings
from rlvr_debug.recorders.trl.draws import Draw, trained_places
from rlvr_debug.recorders.trl.launched import Ranks, beats
from rlvr_debug.recorders.trl.reward_calls import REWARDED, RewardWatch, calls_functions
from rlvr_debug.recorders.trl.saved import saved_weights
from rlvr_debug.recorders.trl.seams import Hook, Seams, Watching, leave_out
from rlvr_debug.recorders.trl.steps import StepWatch, rescaled
from rlvr_debug.replay.declared import Own, declared
from rlvr_debug.replay.finding import seen
from rlvr_debug.replay.network import plain_weights
from rlvr_debug.replay.record import Batch, Call, Changed, Generation, MicroBatch, Record
from rlvr_debug.replay.settings import Settings
from rlvr_debug.replay.store import digest

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

    rewards: functions are called again. steps: of the optimizer, and up to `most`, until a second generation is trained. own:
    the user made the optimizer; None: if there is one before it trains. still: dropout is switched off meanwhile. ranks: this
    process among those that train together.
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
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(Seams(beats(ranks)) if ranks else Seams())
        # digests of the state that tokens are drawn with, by generation
        self.random: list[str] = []
        self._trainer, self._steps, self._most = trainer, steps, most
        self._model = trainer.accelerator.unwrap_model(trainer.model)
        self._policy = objects.callable_parts(self._model)
        self._still = still
        self._own = trainer.optimizer is not None if own is None else own
        self._rewards = RewardWatch(self._seams, again=rewards, ranks=ranks)
        self._resets: list[objects.Reset] = []  # of a generation's environments
        self._draws: list[Draw] = []  # of a generation
        place_pieces(trainer.model)
        self.record = self._begun()
        self._weights = Snapshots(self._model, self.record)
        self._weights.take()
        self.record.reference = self._reference()
        self._first = settings.in_effect(trainer)

    # --- what is known before the first step

    def _begun(self) -> Record:
        trainer = self._trainer
        record = Record(
            trainer=f"{self._library} {version(self._library)}",
            settings=self._asked(len(objects.dropouts_of(self._model))),
            tokenizer=trainer.processing_class,
            tools=self._tools(),
            build=functools.partial(objects.plain_module, self._model),
            scalings=objects.adapters_of(self._model),
            decayed=settings.decayed_names(trainer, self._model, own=self._own),
            trainable=tuple(n for n, p in parameters_of(self._model).items() if p.requires_grad),
            own=Own(
                self._seams.safely("the check", settings.overrides_of, trainer, self._library)
                or {},
                declared(),
                settings.chosen_arguments(trainer.args),
            ),
        )
        record.notes += filter(None, [settings.version_note(self._library, version(self._library))])
        every = {name: shape_of(p).numel() for name, p in parameters_of(self._model).items()}
        sizes = {name: every[name] for name in record.trainable}
        if (trained := sum(sizes.values())) >= _LARGE:
            record.elements, record.rows = objects.some_elements(sizes), _ROWS
            words = getattr(self._model.config, "vocab_size", 0)
            logits = _ROWS * trainer.args.max_completion_length * words
            needs = objects.needs_of(sum(every.values()), trained, logits, self._steps)
            record.notes.append(objects.large_note(_ROWS, needs))
        said = f"{record.settings.dropouts} dropouts are"
        if record.settings.dropouts and self._still:
            record.notes.append(f"{said} switched off in the recorded steps")
        elif record.settings.dropouts:
            why = f"{said} on, and their noise cannot be drawn again"
            record.unseen = dict.fromkeys(_NOISY, why)
        return record

    def _asked(self, dropouts: int) -> Settings:
        return settings.asked_settings(self._trainer, self._model, dropouts, own=self._own)

    def _tools(self) -> list[Any] | None:
        return getattr(self._trainer, "tools", None) or None

    def _changed(self) -> Changed:
        now = settings.in_effect(self._trainer).items()
        return Changed(**{name: held for name, held in now if held != self._first.get(name)})

    def _given(self, inputs: Mapping[str, Any]) -> Batch:
        return objects.kept_batch(inputs)

    def _reference(self) -> Mapping[str, Tensor] | None:
        if getattr(self._trainer, "ref_model", None) is not None:
            place_pieces(self._trainer.ref_model)
            model = self._trainer.accelerator.unwrap_model(self._trainer.ref_model)
            return {name: kept(local(p)) for name, p in parameters_of(model).items()}
        if not self.record.scalings:
            return None
        # the adapter off, or a copy of the one that training began with
        first = {
            own_name(name): {"ref": module.scaling["ref"]}
            for name, module in self._model.named_modules()
            if hasattr(module, "lora_A") and "ref" in getattr(module, "scaling", {})
        }
        if self.cut.weights:
            self.cut = replace(self.cut, adapter=first)
            return None
        return plain_weights(self.record.weights[0], first)

    # --- seams

    def attach(self) -> None:
        trainer, seams = self._trainer, self._seams
        if self._still:
            seams.undone_by(objects.without_dropout(self._model))
        place, name = calls_functions(trainer)
        seams.around("rewards", place, name, self._scoring)
        functions = [each for each in trainer.reward_funcs if isinstance(each, torch.nn.Module)]
        for kind in {type(each) for each in functions}:
            seams.around("rewards", kind, "__call__", self._reward_model)
        # before 0.16 inputs were prepared in one piece, and before 0.15 not even that
        made = "_generate_and_score_completions"
        made = made if hasattr(trainer, made) else "_prepare_inputs"
        self._around("generations", made, self._generation)
        scored, module = name if name in REWARDED else REWARDED[-1], sys.modules[place.__module__]
        if hasattr(module, "gather") and not hasattr(trainer, scored):
            # older releases gather them, and nothing else, in the method that makes the batch
            seams.around("rewards", module, "gather", self._used_rewards)
        else:
            self._around("rewards", scored, self._used_rewards)
        if getattr(trainer, "rollout_func", None) is not None:
            self._around("samples", "_generate", self._rolled)
        for kind in objects.environment_classes(trainer):
            seams.around("generations", kind, "reset", self._reset)
        self._around("losses", "compute_loss", self._loss)
        if len(owners := objects.owners_of(trainer, "_compute_loss")) > 1:
            seams.around("losses", owners[-1], "_compute_loss", self._inner_loss)
        found = next((name for name in _LOGPROBS if hasattr(trainer, name)), None)
        if found:
            self._around("log-probabilities", found, self._logprobs)
        else:
            self.record.notes.append("this release has no method for log-probabilities")
        ends = self.record.settings.sampling.ends
        noted = seams.guarded("samples", self._called)
        drawing = seams.guarded("samples", self._drawing)
        seams.undone_by(
            sampler_calls.watch_generate(lambda: "generation" in self._phase, ends, drawing, noted)
        )
        engine = getattr(trainer, "vllm_generation", None)
        if engine is not None:
            seams.around("samples", engine, "generate", self._engine)
        self._watch_passes()

    def _watch_passes(self) -> None:
        # on the class: a hook on the model would be in its copies, and in what is saved of it
        for kind in {type(module) for module in self._policy}:
            self._seams.around("forward passes", kind, "__call__", self._forward)
        self._seams.around("gradients", self._trainer.accelerator, "backward", self._backward)
        self._seams.around("gradients", self._trainer.accelerator, "clip_grad_norm_", self._clip)

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
        place_pieces(self._trainer.model)
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
        self._seams.undo()

    def detach(self) -> None:
        """Stop watching, and complete the record."""
        self._seams.undo()
        self._seams.safely("rewards", self._rewards.finish, self.record)
        state, args = self._trainer.state, self._trainer.args
        steps = {
            "warmup_steps": args.get_warmup_steps(state.max_steps),
            "total_steps": state.max_steps,
            "schedule_pace": settings.schedule_pace(
                self._trainer.lr_scheduler, self._counts, state.max_steps
            ),
        }
        self.record.settings = replace(self.record.settings, **steps)
        leave_out(self.record, self._seams.failed)

    def evaluates(self) -> bool:
        """Return whether an evaluation samples no more rollouts than were recorded: a longer one is left out, and said."""
        rows, args = self._trainer.eval_dataset, self._trainer.args
        sets = rows.values() if isinstance(rows, dict) else [rows]
        draws = getattr(args, "num_generations_eval", None) or args.num_generations
        try:
            count = draws * sum(map(len, sets))
        except Exception:  # a stream, or a dataset of the user's that has no length
            count = math.inf
        if count <= sum(len(each.rows) for each in self.record.generations):
            return True
        said = "the evaluations are long and were left out; what they leave behind was not seen"
        if said not in self.record.notes:
            self.record.notes.append(said)
        return False

    def part(self) -> Record:
        """Return the record, of several processes this one's part of it."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes < 2:
            return sampler_calls.in_sampled_order(self.record)
        return part_of(self.record, self.random, self.cut, main=accelerator.is_main_process)

    def take_saved(self) -> None:
        given = (self._trainer, self.record, self.cut)
        self.record.saved = self._seams.safely("saved weights", saved_weights, *given)
        leave_out(self.record, self._seams.failed)

    def _generation(self, inputs: Any, *_: Any) -> Watching:
        if not self._trainer.model.training or objects.at_once(self._trainer):
            return
        generation = Generation([objects.kept_row(row) for row in inputs], self._weights.take())
        generation.changed = self._changed()
        self.record.generations.append(generation)
        self.random.append(digest(torch.get_rng_state()))
        self._rewards.begin()
        self._draws.clear()
        self._resets.clear()
        with self._in("generation"):
            out = yield
        generation.rows = objects.opened(self._trainer, generation.rows, self._resets)
        made = out if isinstance(out, list) else [out]
        accelerator = self._trainer.accelerator
        own = APART * (accelerator.process_index + 1) if accelerator.num_processes > 1 else 0
        batch = objects.kept_batch(objects.numbered(made, own))
        generation.batch = replace(batch, rows=seen(batch.rows) - own)
        self._choose(generation)
        scored = self._draws[0].ids if len(self._draws) == 1 else ()
        generation.calls, unused, rows = sampler_calls.trained_calls(
            generation.calls, generation.batch, scored
        )
        if len(rows) == len(generation.batch.prompt_ids) < len(generation.rows):
            self._keep(generation, rows)
        generation.reward_calls = self._rewards.calls
        if unused:
            self.record.notes.append(f"{unused} rollouts were sampled and not trained on")

    def _choose(self, generation: Generation) -> None:
        """Where rollouts were drawn and scored several times, keep the rows and rewards of those that are trained on."""
        draws, pad = self._draws, self.record.settings.pad_id
        places = trained_places(draws, seen(generation.batch), pad) if len(draws) > 1 else None
        if places is None:
            return
        self._rewards.drawn([draw.calls for draw in draws], places)
        generation.rows = [draws[number].rows[row] for number, row in places]
        generation.rewards = torch.stack([draws[number].rewards[row] for number, row in places])
        if all(draw.messages is not None for draw in draws):
            generation.messages = [seen(draws[number].messages)[row] for number, row in places]

    def _keep(self, generation: Generation, rows: list[int]) -> None:
        """Leave out rows that a trainer samples and scores, and filters out before it compares those of a group."""
        sizes = {*Counter(row // self._trainer.args.num_generations for row in rows).values()}
        if len(sizes) > 1:
            return
        self.record.settings = replace(self.record.settings, group_size=sizes.pop())
        self._rewards.keep(rows, len(generation.rows))
        generation.rows = [generation.rows[row] for row in rows]
        if generation.messages is not None:
            generation.messages = [generation.messages[row] for row in rows]
        if generation.rewards is not None:
            generation.rewards = generation.rewards[rows]

    def _reset(self, environment: Any, /, *_: Any, **__: Any) -> Watching:
        """Take note of a reset for a row; later ones are the user's."""
        place = len(self._resets)
        if self._phase != "generation" or place >= len(rows := self.record.generations[-1].rows):
            return
        said = yield
        # once, where the method calls that of another class
        self._resets[place:] = [objects.Reset.of(environment, said)]
        if len(self._resets) == len(rows):
            self._rewards.environments = objects.theirs(rows, self._resets)

    def _rolled(self, *_: Any, **__: Any) -> Watching:
        """Have TRL call a watched rollout function; what the function can reach is itself."""

        def watched(function: Callable[..., Any], restore: Callable[[], None]) -> Any:
            def rolling(*_: Any, **__: Any) -> Watching:
                restore()
                told = yield
                if "generation" in self._phase:
                    self._rolled_out(told)

            return self._seams.watched("samples", function, rolling)

        with self._seams.standing_in(self._trainer, "rollout_func", watched):
            yield

    def _rolled_out(self, told: Mapping[str, Any]) -> None:
        generation = self.record.generations[-1]

        def text(ids: list[int]) -> str:
            """Return the text without its spaces, which a function may strip."""
            said = self.record.tokenizer.decode(ids, skip_special_tokens=True)
            return "".join(said.split())

        calls = sampler_calls.function_calls(told, generation.calls, self._logprob_of, text)
        generation.calls = [replace(each, weights=self._weights.take()) for each in calls]

    def _logprob_of(self, ids: list[int], count: int) -> list[float]:
        if self.cut.weights:
            raise InputError("the policy is sharded: a forward pass needs all processes together")
        device = next(self._model.parameters()).device
        given = torch.tensor([ids], device=device)
        with torch.no_grad(), torch.random.fork_rng():
            logits = self._model(input_ids=given).logits[0, -count - 1 : -1].float()
        chosen: list[float] = (
            logits.log_softmax(-1).gather(1, given[0, -count:, None])[:, 0].tolist()
        )
        return chosen

    def _scoring(self, trainer: Any, *_: Any, **__: Any) -> Watching:
        """Have TRL's own method call watched functions. What a user's code can reach are the functions themselves."""
        if trainer is not self._trainer or "generation" not in self._phase:
            return
        with self._seams.standing_in(trainer, "reward_funcs", self._rewards.watched):
            yield

    def _reward_model(self, model: Any, *_: Any, **named: Any) -> Watching:
        functions = self._trainer.reward_funcs
        index = next((n for n, each in enumerate(functions) if each is model), None)
        if index is None or "generation" not in self._phase:
            return
        out = yield
        tokenizer = self._trainer.reward_processing_classes[index]
        self._rewards.scored(model, index, tokenizer, named, out.logits[:, 0])

    def _used_rewards(self, *given: Any, **named: Any) -> Watching:
        if self._phase != "generation":
            return
        generation = self.record.generations[-1]
        completions = named.get("completions", given[2] if len(given) > 2 else None)
        if completions and isinstance(completions[0], list):
            generation.messages = copy.deepcopy(list(completions))
        rewards = yield
        generation.rewards = kept(rewards)
        ids = named.get("completion_ids_list", given[3] if len(given) > 3 else None)
        told = (*given, *named.values())
        if len(told) == 4 and not self._rewards.calls:
            with suppress(Exception):  # a column that cannot be copied
                number, functions = len(self.record.generations) - 1, self._trainer.reward_funcs
                self._rewards.unwatched(number, functions, *told)
        if ids and len(ids) == len(rewards):
            rows = named.get("inputs", given[0] if given else ())
            before = sum(len(draw.calls) for draw in self._draws)
            self._draws.append(
                Draw(
                    [objects.kept_row(row) for row in rows],
                    [[*map(int, row)] for row in ids],
                    generation.messages,
                    generation.rewards,
                    self._rewards.calls[before:],
                )
            )

    def _loss(self, _: Any, inputs: Any, *__: Any, **___: Any) -> Watching:
        if not torch.is_grad_enabled():
            return
        if objects.at_once(self._trainer):
            yield from self._at_once(inputs)
        if objects.at_once(self._trainer) or not self.record.generations:
            return
        # the same inputs as without the check: a method may go through them, or write to them
        rows = inputs.pop(objects.ROW, None)
        told = objects.columns(inputs if rows is None else {**inputs, objects.ROW: rows})
        given, self._listed = self._given(told), told.get(objects.PLACES)
        self._update.changed = self._changed()
        self._begin_micro(MicroBatch(len(self.record.generations) - 1, given, self._weights.take()))
        try:
            with self._in("loss"):
                out = yield
            micro = self._update.micro_batches[-1]
            self._watch(
                out[0] if isinstance(out, tuple) else out, functools.partial(rescaled, micro)
            )
        finally:
            if rows is not None:
                inputs[objects.ROW] = rows

    def _at_once(self, inputs: Any) -> Watching:
        """Record a loss that generates and scores its own completions; what it makes of them is not seen."""
        weights = self._weights.take()
        generation = Generation(weights=weights)
        self.record.generations.append(generation)
        micro = MicroBatch(len(self.record.generations) - 1, objects.sampled_batch([]), weights)
        self._begin_micro(micro)
        self._rewards.begin()
        with self._in("generation and loss"):
            yield
        generation.reward_calls = self._rewards.calls
        times = sum(len(call.outputs) for call in generation.calls) // len(inputs)
        generation.rows = [objects.kept_row(row) for row in inputs for _ in range(times)]
        micro.given = objects.sampled_batch(generation.calls, self.record.settings.pad_id)

    def _engine(self, *_: Any, **__: Any) -> Watching:
        """Take note of what an engine answers. What it has from transformers is among the calls by itself."""
        if "generation" not in self._phase:
            return
        calls = self.record.generations[-1].calls
        before = len(calls)
        out = yield
        if len(calls) == before:
            self._called(sampler_calls.answered, *out[:3])

    def _drawing(self) -> None:
        """Take note of the random numbers with which the first tokens are drawn: those of the generation may be others."""
        if self.random and not self.record.generations[-1].calls:
            self.random[-1:] = [digest(torch.get_rng_state())]

    def _called(self, make: Callable[..., Call], *told: Any) -> None:
        held = self.record.generations[-1].calls
        held.append(replace(make(*told), weights=self._weights.take()))
