"""Records steps of verl's trainers from their driver: RayPPOTrainer has a DataProto, PPOTrainer (v1) keys of a TransferQueue.

What was sampled is kept when it arrives, so that what the driver makes of it can be held to it.
"""

import contextlib
import copy
import functools
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.verl.batches import Step, asked_of, generation_of, is_held, updates_of
from rlvr_debug.recorders.verl.steps import fill, saved
from rlvr_debug.recorders.verl.worker import Told, padded, written
from rlvr_debug.replay.architecture import no_model
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.store import write_record

_ROW = "rlvr_debug_row"  # a column that travels through the driver's reordering
_TOKENS = ("prompts", "responses", "attention_mask", "response_mask", "rollout_log_probs")
_SAMPLED = (*_TOKENS, "rm_scores")
_TRAINED = (
    *(*_SAMPLED, "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights"),
    *("token_level_scores", "token_level_rewards"),
)
_COLUMNS = ("data_source", "reward_model", "extra_info", "raw_prompt", "__num_turns__", "num_turns")

# segments that need what the optimizer read and left
_OF_STEPS = (
    *("policy log-probabilities", "gradient", "clip"),
    *("weights between steps", "optimizer step"),
)


class _Enough(BaseException):
    """Raised when all steps are recorded: no `except Exception` keeps it from ending the loop."""


@dataclass
class _Recorder:
    """Keeps a driver's steps. kept: by row what was sampled, and its columns of the data; first: steps before them."""

    trainer: Any
    told: Told
    steps: list[Step] = field(default_factory=list)
    kept: dict[Any, tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=dict)
    first: int = 0

    def keep(self, ids: Sequence[Any], tensors: Mapping[str, Tensor], data: Any) -> None:
        columns = {name: [*data[name]] for name in _COLUMNS if name in data}
        for place, row in enumerate(ids):
            own = {name: tensors[name][place].clone() for name in _SAMPLED if name in tensors}
            held = {name: copy.deepcopy(values[place]) for name, values in columns.items()}
            self.kept[row] = own, held

    def add(self, ids: Sequence[Any], tensors: Mapping[str, Tensor], uids: Sequence[Any]) -> None:
        if len(self.steps) >= self.told.steps:
            return
        self.first = self.first if self.steps else self.trainer.global_steps - 1
        trained = {name: tensors[name].clone() for name in _TRAINED if name in tensors}
        scores = trained.get("rm_scores", torch.zeros(0))
        scores = trained.setdefault("token_level_scores", scores)
        trained.setdefault("token_level_rewards", scores)
        known = all(row in self.kept for row in ids)
        seen, rows = zip(*(self.kept[row] if known else ({}, {}) for row in ids), strict=True)
        sampled = {name: torch.stack([own[name] for own in seen]) for name in seen[0]}
        several = [int(each.get("__num_turns__", each.get("num_turns", 2))) > 2 for each in rows]
        step = Step(trained, sampled, [*map(str, uids)], [*map(_row, rows)], several)
        if sampled and self.told.rewards:
            self._call_again(step, rows)
        self.steps.append(step)
        self.kept.clear()

    def update(self, train: Callable[[], Any]) -> Any:
        """Have the actor updated by the step that was added last, and take what its workers write of that."""
        folder = self.told.workers
        if Path(self.told.folder).exists():  # all is recorded, and training goes on
            return train()
        folder.mkdir(parents=True)
        try:
            found = train()
            self._take(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if len(self.steps) == self.told.steps:
            self.write()
            if not self.told.goes_on:
                raise _Enough
        return found

    def _take(self, folder: Path) -> None:
        """Take what workers wrote of the last step."""
        step = self.steps[-1]
        try:
            step.updates, step.stepped = written(folder), saved(folder, "step")
        except Exception as error:  # of a file that is not whole
            step.notes.append(f"what the workers wrote could not be read: {error!r}")

    def _call_again(self, step: Step, rows: Sequence[dict[str, Any]]) -> None:
        """Have the rewards of a step computed again, unless a model gives them."""
        from verl.trainer.ppo.reward import load_reward_manager

        if self.trainer.config.reward.reward_model.enable:
            return
        try:
            manager = load_reward_manager(self.trainer.config, self.trainer.tokenizer)
            step.again = [_called(manager, step.sampled, rows, n) for n in range(len(rows))]
        except Exception as error:  # whatever a reward function says
            step.notes.append(f"the reward function could not be called again: {error!r}")

    def write(self) -> None:
        if self.steps and not Path(self.told.folder).exists():
            write_record(self._record(), Path(self.told.folder))
            print(f"rlvr-debug: {len(self.steps)} steps of verl: {self.told.folder}", flush=True)

    def _record(self) -> Record:
        from omegaconf import OmegaConf

        config: Any = OmegaConf.to_container(self.trainer.config, resolve=True)
        tokenizer, asked = self.trainer.tokenizer, config["actor_rollout_ref"]
        model = _model(asked["model"]["path"])
        own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
        settings, unseen = asked_of(config, tuple(sorted(ends)), tokenizer.pad_token_id or 0)
        if asked["rollout"]["multi_turn"]["enable"]:
            why = "schemas of verl's tools are not recorded"
            unseen |= {"prompt": why, "tool turns": why}
        generations = [generation_of(step, settings.group_size) for step in self.steps]
        updates = [
            update
            for number, step in enumerate(self.steps)
            for update in updates_of(step, generations[number], number)
        ]
        masks = [step.trained["response_mask"] for step in self.steps]
        if "loss mask" in unseen and not all(mask.any(1).all() for mask in masks):
            unseen["advantages"] = "all tokens of a row are rejected, and its advantage with them"
        if any(map(is_held, updates)):
            unseen["loss"] = (
                "verl holds the ratio of a token, which is more than e^20 or less than e^-20"
            )
        record = Record(
            trainer=f"verl {version('verl')}",
            settings=replace(settings, first_step=self.first),
            tokenizer=tokenizer,
            tools=None,
            build=no_model if model is None else lambda: type(model)(model.config),
            generations=generations,
            updates=updates,
            notes=[note for step in self.steps for note in step.notes],
            unseen=unseen,
        )
        if model is None:
            unseen |= dict.fromkeys(_OF_STEPS, "the model of the configuration could not be read")
            return record
        record.reference = weights = {name: p.detach() for name, p in model.named_parameters()}
        try:
            steps = [each for step in self.steps for each in step.stepped]
            fill(record, steps, {name: weight.shape for name, weight in weights.items()})
            # in the actor's type, which need not be that of the model's files
            held = record.weights[0]
            record.reference = {name: each.to(held[name].dtype) for name, each in weights.items()}
            unseen["model inputs"] = "what the policy reads in verl's workers is not recorded"
            known = {m.generation: u.before for u in updates[::-1] for m in u.micro_batches}
        except InputError as error:
            unseen |= dict.fromkeys(_OF_STEPS, str(error))
            known = {} if self.first else {0: 0}  # the configuration's model, of training's start
            if known:
                record.weights, record.trainable = [weights], tuple(weights)
        synced = config["trainer"]["v1"]["trainer_mode"] == "sync"
        for number, generation in enumerate(generations):
            generation.weights = own = known.get(number)
            sampling = own if synced or number == self.first == 0 else None
            generation.calls = [replace(call, weights=sampling) for call in generation.calls]
        if len(known) < len(generations):
            what = "their old log-probabilities and sampler are not checked"
            record.notes.append(
                f"only the weights of the first step are known; in later steps: {what}"
            )
        return record


def _row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the data, with the prompt as messages."""
    found = {name: columns[name] for name in _COLUMNS[:3] if name in columns}
    prompt = columns.get("raw_prompt")
    return found if prompt is None else {**found, "prompt": [*map(dict, prompt)]}


def _called(manager: Any, sampled: Mapping[str, Tensor], rows: Sequence[Any], row: int) -> float:
    from verl import DataProto

    columns = {name: np.empty(1, dtype=object) for name in rows[row]}
    for name, value in rows[row].items():
        columns[name][0] = copy.deepcopy(value)
    tensors = {name: tensor[row : row + 1] for name, tensor in sampled.items()}
    data = DataProto.from_dict(tensors=tensors, non_tensors=columns)
    found: Any = manager.loop.run_until_complete(manager.run_single(data))
    return float(found["reward_score"])


def _model(path: str) -> Any:
    """Return the model that the configuration names, None where it cannot be read."""
    from transformers import AutoModelForCausalLM
    from verl.utils.fs import copy_to_local

    with contextlib.suppress(OSError, ValueError, KeyError), torch.random.fork_rng():
        return AutoModelForCausalLM.from_pretrained(copy_to_local(path), dtype="auto")
    return None


def _fitting(fit: Callable[..., Any], told: Told, begun: Callable[[_Recorder], Any]) -> Any:
    """Return a training loop that is recorded. begun: called with its recorder."""

    @functools.wraps(fit)
    def fitted(trainer: Any, *given: Any, **named: Any) -> Any:
        trainer._rlvr_debug = recorder = _Recorder(trainer, told)
        begun(recorder)
        try:
            return fit(trainer, *given, **named)
        except _Enough:
            return None
        finally:
            recorder.write()  # of a run that ended before

    return fitted


# --- the trainer that holds a DataProto


def watch_ray_trainer(kind: Any, told: Told) -> None:
    update = kind._update_actor

    def begun(recorder: _Recorder) -> None:
        manager = recorder.trainer.async_rollout_manager
        manager.generate_sequences = _keeping(manager.generate_sequences, recorder)

    @functools.wraps(update)
    def updated(trainer: Any, batch: Any) -> Any:
        ids = batch.non_tensor_batch.pop(_ROW, [None] * len(batch))
        trainer._rlvr_debug.add([*ids], dict(batch.batch.items()), batch.non_tensor_batch["uid"])
        return trainer._rlvr_debug.update(lambda: update(trainer, batch))

    kind._update_actor, kind.fit = updated, _fitting(kind.fit, told, begun)


def _keeping(generate: Callable[..., Any], recorder: _Recorder) -> Callable[..., Any]:
    """Return a sampler that numbers its rows, and keeps them, unless it samples for validation."""
    count = itertools.count()

    def kept(prompts: Any, *given: Any, **named: Any) -> Any:
        held = prompts.non_tensor_batch
        columns = {name: copy.deepcopy(held[name]) for name in _COLUMNS if name in held}
        output = generate(prompts, *given, **named)
        if not prompts.meta_info.get("validate"):
            own = output.non_tensor_batch
            own[_ROW] = np.array([next(count) for _ in range(len(output))])
            recorder.keep(own[_ROW], dict(output.batch.items()), columns | own)
        return output

    return kept


# --- the trainer that holds keys of a TransferQueue


def watch_v1_trainer(kind: Any, told: Told) -> None:
    """Have a class of trainers record its steps. Rows that only fill a batch up are none."""
    update, balance = kind._update_actor, kind._balance_batch

    @functools.wraps(balance)
    def balanced(trainer: Any, batch: Any, *given: Any, **named: Any) -> Any:
        keys, data = _read(batch, (*_SAMPLED, *_COLUMNS))
        trainer._rlvr_debug.keep(keys, _padded(data), data)
        return balance(trainer, batch, *given, **named)

    @functools.wraps(update)
    def updated(trainer: Any, batch: Any, *given: Any, **named: Any) -> Any:
        keys, data = _read(batch, (*_TRAINED, "uid"))
        trainer._rlvr_debug.add(keys, _padded(data), [*data["uid"]])
        return trainer._rlvr_debug.update(lambda: update(trainer, batch, *given, **named))

    kind._update_actor, kind._balance_batch = updated, balanced
    kind.fit = _fitting(kind.fit, told, lambda _: None)


def _read(batch: Any, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the keys of a batch's rows, and their columns by name."""
    import transfer_queue

    tags = batch.tags or [{}] * len(batch.keys)
    keys = [key for key, tag in zip(batch.keys, tags, strict=True) if not tag.get("is_padding")]
    where = {"keys": keys, "partition_id": batch.partition_id}
    found = transfer_queue.kv_batch_get(**where, select_fields=[*names])
    return keys, {name: found[name] for name in {*names} & {*found.keys()}}


def _padded(data: Mapping[str, Any]) -> dict[str, Tensor]:
    return padded({name: data[name] for name in _TRAINED if name in data})
