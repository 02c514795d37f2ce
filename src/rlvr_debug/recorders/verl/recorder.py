"""Records steps of verl's trainers from their driver, which computes as it would without it.

Both are watched where they update the actor: RayPPOTrainer has a DataProto there, PPOTrainer (v1) keys of a
TransferQueue. What was sampled is kept when it arrives, so that what the driver makes of it can be held to it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.recorders.verl.batches import Step, generation_of
from rlvr_debug.recorders.verl.settings import asked_of
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Record, Weights
from rlvr_debug.replay.store import write_record

__all__ = ["Told", "watch_ray_trainer", "watch_v1_trainer"]

_ROW = "rlvr_debug_row"  # a column that travels through the driver's reordering
_SAMPLED = (
    *("prompts", "responses", "attention_mask", "response_mask"),
    *("rollout_log_probs", "rm_scores"),
)
_TRAINED = (
    *("prompts", "responses", "attention_mask", "response_mask", "advantages", "old_log_probs"),
    *("ref_log_prob", "rollout_log_probs", "rollout_is_weights"),
    *("token_level_scores", "token_level_rewards", "rm_scores"),
)
_COLUMNS = ("data_source", "reward_model", "extra_info", "raw_prompt")


class _Enough(BaseException):
    """Raised when all steps are recorded: no `except Exception` keeps it from ending the loop."""


@dataclass(frozen=True)
class Told:
    """What was asked of the recorder. goes_on: whether training goes on after the steps; rewards: whether these are called again."""

    folder: str
    steps: int = 2
    rewards: bool = True
    goes_on: bool = False


@dataclass
class _Recorder:
    """Keeps what a driver samples and updates by. kept: by row what was sampled, and its columns."""

    trainer: Any
    told: Told
    steps: list[Step] = field(default_factory=list)
    kept: dict[Any, tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=dict)
    written: bool = False
    first: int = 0

    def keep(
        self, ids: Sequence[Any], tensors: Mapping[str, Tensor], columns: Mapping[str, Any]
    ) -> None:
        """Keep the sampled rows with these ids."""
        for place, row in enumerate(ids):
            own = {name: tensors[name][place].clone() for name in _SAMPLED if name in tensors}
            held = {name: copy.deepcopy(columns[name][place]) for name in columns}
            self.kept[row] = own, held

    def add(self, ids: Sequence[Any], tensors: Mapping[str, Tensor], uids: Sequence[Any]) -> None:
        """Keep a step, and end training after the last one."""
        if self.written:
            return
        if not self.steps:
            self.first = self.trainer.global_steps - 1
        trained = {name: tensors[name].clone() for name in _TRAINED if name in tensors}
        trained.setdefault("token_level_scores", trained.get("rm_scores", torch.zeros(0)))
        trained.setdefault("token_level_rewards", trained["token_level_scores"])
        sampled = [self.kept[row] for row in ids if row in self.kept]
        known = len(sampled) == len(ids)
        rows = [columns for _, columns in sampled] if known else [{} for _ in ids]
        whole = _stacked([own for own, _ in sampled]) if known else {}
        step = Step(
            trained,
            whole,
            [str(uid) for uid in uids],
            [_row(columns) for columns in rows],
            [int(columns.get("__num_turns__", 2)) > 2 for columns in rows],
        )
        self.steps.append(self._with_rewards(step, rows) if known else step)
        self.kept.clear()
        if len(self.steps) == self.told.steps:
            self.write()
            if not self.told.goes_on:
                raise _Enough

    def _with_rewards(self, step: Step, rows: list[dict[str, Any]]) -> Step:
        """Return the step with its rewards called again, in order and backwards."""
        config = self.trainer.config
        if config.reward.reward_model.enable or not self.told.rewards:
            return step
        from verl.trainer.ppo.reward import load_reward_manager

        places = range(len(rows))
        try:
            manager = load_reward_manager(config, self.trainer.tokenizer)
            called = functools.partial(_called, manager, step.sampled, rows)
            again = [called(row) for row in places]
            turned = {row: called(row) for row in reversed(places)}
        except Exception as error:  # whatever a reward function says
            step.notes.append(f"the reward function could not be called again: {error!r}")
            return step
        name = config.reward.custom_reward_function.get("name") or config.reward.reward_manager.name
        backwards = [turned[row] for row in places]
        return replace(step, reward=str(name), again=again, backwards=backwards)

    def write(self) -> None:
        """Write what was recorded, once."""
        if self.written or not self.steps:
            return
        self.written = True
        write_record(self._record(), Path(self.told.folder))
        print(f"rlvr-debug: {len(self.steps)} steps of verl are recorded in {self.told.folder}")

    def _record(self) -> Record:
        from omegaconf import OmegaConf

        trainer, config = self.trainer, OmegaConf.to_container(self.trainer.config, resolve=True)
        tokenizer = trainer.tokenizer
        model, ends = _model(config)
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        asked = asked_of(config, tuple(sorted({*own, *ends})), pad)
        settings = replace(asked.settings, first_step=self.first)
        record = Record(
            trainer=f"verl {version('verl')}",
            settings=settings,
            tokenizer=tokenizer,
            tools=None,
            build=_no_model if model is None else functools.partial(type(model), model.config),
            generations=[generation_of(step, settings.group_size) for step in self.steps],
            unseen=asked.unseen,
        )
        record.notes += [note for step in self.steps for note in step.notes]
        if model is not None:
            self._hold(record, model)
        if config["actor_rollout_ref"]["rollout"]["multi_turn"]["enable"]:
            why = "schemas of verl's tools are not recorded"
            record.unseen = {**record.unseen, "prompt": why, "tool turns": why}
        return record

    def _hold(self, record: Record, model: Any) -> None:
        """Give a record the model that the configuration names: the policy of the first step, and the reference."""
        weights: Weights = {name: p.detach() for name, p in model.named_parameters()}
        record.reference = weights
        for number, generation in enumerate(record.generations):
            if number or self.first:
                generation.weights = None
                generation.calls = [replace(call, weights=None) for call in generation.calls]
        if self.first:
            record.notes.append("training goes on from a checkpoint, whose weights are not known")
            return
        record.weights, record.trainable = [weights], tuple(weights)
        if len(record.generations) > 1:
            what = "old log-probabilities and sampler are not looked at"
            record.notes.append(
                f"weights of later steps than the first are not known: {what} there"
            )


def _stacked(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the data, with the prompt as messages."""
    found = {name: columns[name] for name in _COLUMNS if name in columns}
    prompt = found.pop("raw_prompt", None)
    return found if prompt is None else {**found, "prompt": [dict(each) for each in prompt]}


def _called(
    manager: Any, sampled: Mapping[str, Tensor], rows: list[dict[str, Any]], row: int
) -> float:
    """Return the reward of one row, as verl's reward worker has it computed."""
    from verl import DataProto

    columns: dict[str, Any] = {}
    for name, value in copy.deepcopy(rows[row]).items():
        columns[name] = np.empty(1, dtype=object)
        columns[name][0] = value
    tensors = {name: tensor[row : row + 1] for name, tensor in sampled.items()}
    data = DataProto.from_dict(tensors=tensors, non_tensors=columns)
    found: Any = manager.loop.run_until_complete(manager.run_single(data))
    return float(found["reward_score"])


def _model(config: Mapping[str, Any]) -> tuple[Any, list[int]]:
    """Return the model that the configuration names, None where it cannot be read, and the tokens that end a reply."""
    from transformers import AutoModelForCausalLM
    from verl.utils.fs import copy_to_local

    path = copy_to_local(config["actor_rollout_ref"]["model"]["path"])
    with contextlib.suppress(OSError, ValueError, KeyError), torch.random.fork_rng():
        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
        ends = getattr(model.generation_config, "eos_token_id", None)
        return model, [] if ends is None else [ends] if isinstance(ends, int) else [*ends]
    return None, []


def _fitting(fit: Callable[..., Any], told: Told, begun: Callable[..., None]) -> Callable[..., Any]:
    """Return a training loop that is recorded. begun: called with the trainer and its recorder."""

    @functools.wraps(fit)
    def fitted(trainer: Any, *given: Any, **named: Any) -> Any:
        trainer._rlvr_debug = recorder = _Recorder(trainer, told)
        begun(trainer, recorder)
        try:
            return fit(trainer, *given, **named)
        except _Enough:
            return None
        finally:
            recorder.write()  # of a run that ended before

    return fitted


def _no_model() -> Any:
    raise NotSeen("the model that the configuration names could not be read")


# --- the trainer that holds a DataProto


def watch_ray_trainer(kind: Any, told: Told) -> None:
    """Have a class of trainers record its steps."""
    update = kind._update_actor

    def begun(trainer: Any, recorder: _Recorder) -> None:
        manager = trainer.async_rollout_manager
        manager.generate_sequences = _keeping(manager.generate_sequences, recorder)

    @functools.wraps(update)
    def updated(trainer: Any, batch: Any) -> Any:
        columns = batch.non_tensor_batch
        ids = columns.pop(_ROW, [None] * len(batch))
        trainer._rlvr_debug.add([*ids], dict(batch.batch.items()), columns["uid"])
        return update(trainer, batch)

    kind._update_actor, kind.fit = updated, _fitting(kind.fit, told, begun)


def _keeping(generate: Callable[..., Any], recorder: _Recorder) -> Callable[..., Any]:
    """Return a sampler that numbers its rows, and keeps them, unless it samples for validation."""
    count = itertools.count()

    def kept(prompts: Any, *given: Any, **named: Any) -> Any:
        columns = {n: [*v] for n, v in prompts.non_tensor_batch.items() if n in _COLUMNS}
        columns = copy.deepcopy(columns)  # an agent loop may write in them
        output = generate(prompts, *given, **named)
        if not prompts.meta_info.get("validate"):
            own = output.non_tensor_batch
            own[_ROW] = np.array([next(count) for _ in range(len(output))])
            columns |= {n: [*own[n]] for n in ("__num_turns__",) if n in own}
            recorder.keep(own[_ROW], dict(output.batch.items()), columns)
        return output

    return kept


# --- the trainer that holds keys of a TransferQueue


def watch_v1_trainer(kind: Any, told: Told) -> None:
    """Have a class of trainers record its steps. Rows that only fill a batch up are none."""
    update, balance = kind._update_actor, kind._balance_batch

    @functools.wraps(balance)
    def balanced(trainer: Any, batch: Any, *given: Any, **named: Any) -> Any:
        keys, data = _read(batch, (*_SAMPLED, *_COLUMNS, "num_turns"))
        columns = {n: [*data[n]] for n in (*_COLUMNS, "num_turns") if n in data}
        if "num_turns" in columns:
            columns["__num_turns__"] = columns.pop("num_turns")
        trainer._rlvr_debug.keep(keys, _padded(data), columns)
        return balance(trainer, batch, *given, **named)

    @functools.wraps(update)
    def updated(trainer: Any, batch: Any, *given: Any, **named: Any) -> Any:
        keys, data = _read(batch, (*_TRAINED, "uid"))
        trainer._rlvr_debug.add(keys, _padded(data), [*data["uid"]])
        return update(trainer, batch, *given, **named)

    kind._update_actor, kind._balance_batch = updated, balanced
    kind.fit = _fitting(kind.fit, told, lambda *_: None)


def _read(batch: Any, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the keys of a batch's rows, and their columns by name."""
    import transfer_queue

    tags = batch.tags or [{}] * len(batch.keys)
    keys = [key for key, tag in zip(batch.keys, tags, strict=True) if not tag.get("is_padding")]
    found = transfer_queue.kv_batch_get(
        keys=keys, partition_id=batch.partition_id, select_fields=[*names]
    )
    return keys, {name: found[name] for name in names if name in found.keys()}


def _padded(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return rows of any length as tensors, prompts on the right and all else on the left, with their attention mask."""
    rows = {name: [*each.unbind()] for name, each in data.items() if isinstance(each, Tensor)}
    found = {
        name: pad_sequence(
            each, batch_first=True, padding_side="left" if name == "prompts" else "right"
        )
        for name, each in rows.items()
        if name != "attention_mask"
    }
    ones = {n: [torch.ones_like(row) for row in rows[n]] for n in ("prompts", "responses")}
    read = pad_sequence(ones["prompts"], batch_first=True, padding_side="left")
    wrote = pad_sequence(ones["responses"], batch_first=True)
    return found | {"attention_mask": torch.cat([read, wrote], 1)}
