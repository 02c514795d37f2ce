"""Whether a file says all that a record needs, and whether its parts fit each other: shapes, types and limits of tensors.

What a check computes with must fit, or a segment would fail on it; what a trainer did wrong is not refused here.
Axes as in record.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlvr_debug.errors import InputError, hint, short
from rlvr_debug.replay.architecture import Architecture
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.network import plain_weights
from rlvr_debug.replay.record import (
    MASTER,
    TOKENS,
    Batch,
    Call,
    Generation,
    MicroBatch,
    Record,
    RewardCall,
    Update,
    Weights,
)
from rlvr_debug.replay.segments import SEGMENTS

Shape = tuple[int | None, ...]  # lengths, of which None may be any
_CALLS, _MICROS = "generations.*.calls.*", "updates.*.micro_batches.*"
_SHAPED = ("exp_avg", "exp_avg_sq", "momentum_buffer", MASTER)
# what the settings must say beside something else that the file says: nothing is judged by a default that nobody chose
_BESIDE = (
    ("weights", ("precision",)),
    ("generations.*.rewards", ("scale_rewards",)),
    ("generations.*.calls", ("eos_ids", "pad_id")),
    (f"{_MICROS}.given.old", ("clip", "epsilon_high")),
    (f"{_MICROS}.given.reference", ("kl_beta",)),
    (f"{_MICROS}.grad_logprobs", ("loss_type",)),
    ("updates.*.clipped", ("max_grad_norm",)),
    ("updates.*.optimizer", ("learning_rate", "weight_decay", "schedule")),
)
# numbers of the weights that something is of
_NUMBERS = (
    ("generations.*", ("weights",)),
    (_CALLS, ("weights",)),
    ("updates.*", ("before", "after")),
    (_MICROS, ("weights",)),
)


def _at(value: Any, pattern: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands at a path, of which * is any number, with its place. value: JSON, or a record."""
    name, _, rest = pattern.partition(".")
    items: Iterable[tuple[object, Any]]
    if name == "*":
        items = enumerate(value or ())
    else:
        items = [(name, value.get(name) if isinstance(value, Mapping) else getattr(value, name))]
    for own, each in items:
        where = f"{place}.{own}" if place else str(own)
        if not rest:
            yield where, each
        elif each is not None:
            yield from _at(each, rest, where)


def check_needed(told: Mapping[str, Any]) -> None:
    """Raise InputError, without the file, for the first key that is missing in what record.json says."""
    settings = told["settings"]
    for pattern, names in _BESIDE:
        # gradients of no parameter are some, too
        if any(each or (each == {} and "clipped" in pattern) for _, each in _at(told, pattern)):
            _check_keys("settings", settings, names, f"beside {pattern.rpartition('.')[2]}")
    constant = settings.get("schedule", "").startswith("constant")
    if not constant and any(each for _, each in _at(told, "updates.*.optimizer")):
        _check_keys("settings", settings, ("total_steps",), "beside optimizer")
    made = [each or () for _, each in _at(told, "updates.*.micro_batches")]
    if any(len(each) > 1 for each in made):
        names = ("micro_batches", "steps_per_generation")
        _check_keys("settings", settings, names, "beside several micro-batches")
    served = Counter(number for each in made for number in {micro["generation"] for micro in each})
    if any(count > 1 for count in served.values()):
        names = ("num_iterations", "steps_per_generation")
        _check_keys("settings", settings, names, "beside several updates of one generation")
    if told.get("weights"):
        _check_keys("", told, ("trainable",), "beside weights")
        for pattern, names in _NUMBERS:
            for place, part in _at(told, pattern):
                _check_keys(place, part, names, "the number of weights")
    for pattern, whole in (("generations.*.batch", False), (f"{_MICROS}.given", True)):
        for place, batch in _at(told, pattern):
            if whole or any(name in (batch or ()) for name in TOKENS):
                _check_keys(place, batch, TOKENS, "with the tokens")


def _check_keys(place: str, part: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    for name in names:
        if name not in part:
            raise InputError(f"key '{place}{'.' * bool(place)}{name}' is missing, expected {why}")


def check_record(record: Record, architecture: Architecture | None) -> None:
    """Raise InputError, without the file, for the first part of the record that does not fit the others."""
    names = [segment.name for segment in SEGMENTS]
    for name in record.unseen:
        if name not in names:
            raise InputError(f"key 'unseen.{name}': no such segment, {hint(name, names)}")
    _check_weights(record, architecture)
    count = len(record.weights)
    for pattern, keys in _NUMBERS if count else ():
        for place, number in (each for key in keys for each in _at(record, f"{pattern}.{key}")):
            known = number is None or number < count
            _need(known, place, str(number), f"one of {count} weights, from 0")
    known = _Known(record, None if architecture is None else architecture.vocabulary)
    for place, generation in _at(record, "generations.*"):
        known.check_generation(place, generation)
    for place, micro in _at(record, _MICROS):
        known.check_micro_batch(place, micro)
    for place, update in _at(record, "updates.*"):
        known.check_update(place, update)


# --- weights


def _check_weights(record: Record, architecture: Architecture | None) -> None:
    """Check all weights against the first ones, and against the parameters of the architecture."""
    shapes: Mapping[str, tuple[int, ...]] = {} if architecture is None else architecture.shapes
    tied = {} if architecture is None else architecture.tied
    first = record.weights[0] if record.weights else {}
    for place, weights in _at(record, "weights.*"):
        for name, tensor in weights.items():
            _check_real(f"{place}.{name}", tensor, tuple(first.get(name, tensor).shape))
        _check_keys(place, weights, record.trainable, "as in trainable")
        try:  # without their numbers
            bare = {name: tensor.to("meta") for name, tensor in weights.items()}
            merged = plain_weights(bare, record.scalings)
        except (KeyError, RuntimeError, NotSeen) as error:
            said = f"with adapters that do not fit ({' '.join(str(error).split())[:80]})"
            raise InputError(f"key '{place}' is {said}, expected A and B of each") from None
        _check_keys(place, merged, shapes, "as in model/config.json")
        shapes = shapes or {name: tuple(tensor.shape) for name, tensor in merged.items()}
        _check_shapes(place, merged, shapes)
        _check_tied(place, weights, tied)
    for name, places in record.elements.items():
        count = first[name].numel() if name in first else None
        _check_whole(f"elements.{name}", places, count, (None,))
    if record.reference is not None:
        _check_keys("reference", record.reference, shapes, "as in the policy")
        _check_tied("reference", record.reference, tied)
    for place, other in (("reference", record.reference), ("saved", record.saved)):
        _check_shapes(place, other or {}, shapes)


def _check_shapes(place: str, weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, tensor in weights.items():
        _check_real(f"{place}.{name}", tensor, shapes.get(name, tuple(tensor.shape)))


def _check_tied(place: str, weights: Weights, tied: Mapping[str, str]) -> None:
    for name, other in tied.items():
        same = name not in weights or weights[name] is weights[other]
        _need(same, f"{place}.{name}", "another tensor", f"that of {other}, to which it is tied")


# --- generations and updates


@dataclass(frozen=True)
class _Known:
    """A record, and how many tokens its model knows, where that is known."""

    record: Record
    vocabulary: int | None

    def check_generation(self, place: str, generation: Generation) -> None:
        settings = self.record.settings
        first = generation.rows[0].keys() if generation.rows else ()
        for number, row in enumerate(generation.rows):
            said = f"a row of {short(sorted(row))}"
            _need(row.keys() == first, f"{place}.rows.{number}", said, short(sorted(first)))
        count = _count(place, generation)
        wanted = f"a multiple of settings.group_size, {settings.group_size}"
        whole = not (count or 0) % settings.group_size
        _need(whole, place, f"of {count} rollouts", wanted)
        functions = len(settings.reward_weights)
        if (changed := generation.changed.reward_weights) is not None:
            key = f"{place}.changed.reward_weights"
            _check_count(key, len(changed), functions, "one for each reward function")
        if generation.rewards is not None:
            _check_real(f"{place}.rewards", generation.rewards, (count, functions))
        if generation.batch is not None:
            self._check_batch(f"{place}.batch", generation.batch, count, count)
        if self.record.processes or generation.processes:
            key, own = f"{place}.processes", generation.processes
            _check_count(key, len(own), count or 0, "one for each rollout")
            _check_limits(key, 0, max(own, default=0), self.record.size)
        for number, call in enumerate(generation.calls):
            self._check_call(f"{place}.calls.{number}", call, len(generation.calls[0].prompts))
        for number, reward_call in enumerate(generation.reward_calls):
            self._check_reward_call(f"{place}.reward_calls.{number}", reward_call, count)

    def check_micro_batch(self, place: str, micro: MicroBatch) -> None:
        generations, given = self.record.generations, micro.given
        _check_limits(f"{place}.process", 0, micro.process, self.record.size)
        limits, known = f"one of {len(generations)} generations, from 0", len(generations)
        _need(micro.generation < known, f"{place}.generation", str(micro.generation), limits)
        whole = generations[micro.generation].batch
        self._check_batch(f"{place}.given", given, None, None if whole is None else _rows(whole))
        if whole is not None and whole.advantages.numel() and given.advantages.numel():
            axes, wanted = given.advantages.dim(), whole.advantages.dim()
            _check_count(f"{place}.given.advantages", axes, wanted, "axes of the generation's")
        shape = tuple(given.completion_ids.shape)
        for name in ("logprobs", "entropies", "grad_logprobs", "grad_entropies"):
            tensor = getattr(micro, name)
            if tensor is not None:
                _check_real(f"{place}.{name}", tensor, shape)
        _check_known(f"{place}.logprobs", micro.logprobs, given)
        self._check_forward(f"{place}.forward", micro, shape)

    def _check_forward(self, place: str, micro: MicroBatch, shape: tuple[int, ...]) -> None:
        forward, (rows, width) = micro.forward, shape
        if forward is None:
            return
        key = f"{place}.input_ids"
        _check_whole(key, forward.input_ids, self.vocabulary, (rows, None))
        length = forward.input_ids.shape[1]
        if forward.places is not None:
            _check_whole(f"{place}.places", forward.places, length, (rows, width))
        else:
            wanted = f"more than the {width} of the completion"
            _need(length > width, key, f"of {length} tokens", wanted)
        if forward.attention_mask is not None:
            _check_whole(f"{place}.attention_mask", forward.attention_mask, 2, (rows, length))
        if forward.position_ids is not None:
            shapes = ((rows, length), (1, length))
            _check_whole(f"{place}.position_ids", forward.position_ids, None, *shapes)

    def check_update(self, place: str, update: Update) -> None:
        for kind in ("gradients", "clipped"):
            for name, tensor in (getattr(update, kind) or {}).items():
                self._check_like(f"{place}.{kind}.{name}", tensor, name)
        for kind in ("state", "state_after"):
            for name, state in (getattr(update, kind) or {}).items():
                for key, tensor in state.items():
                    where = f"{place}.{kind}.{name}.{key}"
                    real = tensor.numel() == 1 and not tensor.is_complex()
                    if key in _SHAPED:
                        self._check_like(where, tensor, name)
                    elif key == "step":
                        known = real and float(tensor) >= 0
                        _need(known, where, short(tensor.tolist()), "one number, 0 or more")

    def _check_like(self, key: str, tensor: Tensor, name: str) -> None:
        """Check a tensor of a weight's shape, or of those of its numbers that are looked at."""
        weight = self.record.weights[0].get(name, tensor) if self.record.weights else tensor
        _check_real(key, tensor, tuple(self.record.elements.get(name, weight).shape))

    def _check_batch(self, place: str, batch: Batch, count: int | None, whole: int | None) -> None:
        """Check a batch of `count` rows, which are of a generation of `whole`."""
        count = _rows(batch) if count is None else count
        prompt, completion = (
            each.shape[-1] if each.dim() else 0 for each in (batch.prompt_ids, batch.completion_ids)
        )
        for name in TOKENS if completion else ():
            most = self.vocabulary if name.endswith("ids") else 2
            width = prompt if name.startswith("prompt") else completion
            _check_whole(f"{place}.{name}", getattr(batch, name), most, (count, width))
        if batch.advantages.numel():
            _check_real(f"{place}.advantages", batch.advantages, (count,), (count, completion))
        for name in ("old", "reference", "sampler"):
            tensor = getattr(batch, name)
            if tensor is not None:
                _check_real(f"{place}.{name}", tensor, (count, completion))
                _check_known(f"{place}.{name}", tensor, batch)
        if batch.importance_weights is not None:
            shapes = ((count, completion), (count, 1))
            _check_real(f"{place}.importance_weights", batch.importance_weights, *shapes)
        if batch.rows is not None:
            _check_whole(f"{place}.rows", batch.rows, whole, (count,))

    def _check_call(self, place: str, call: Call, rollouts: int) -> None:
        """Check a call of a generation whose first one is of so many rollouts."""
        asked = len(call.prompts)
        _check_count(f"{place}.outputs", len(call.outputs), asked, "one for each prompt")
        _check_ids(f"{place}.prompts", call.prompts, self.vocabulary)
        _check_ids(f"{place}.outputs", call.outputs, self.vocabulary)
        if call.logprobs:
            _check_count(f"{place}.logprobs", len(call.logprobs), asked, "one for each output")
        for number, (values, output) in enumerate(zip(call.logprobs, call.outputs, strict=False)):
            key = f"{place}.logprobs.{number}"
            _check_count(key, len(values), len(output), "one for each token")
            real = all(value == value for value in values)
            _need(real, key, "null somewhere", "numbers")
        if call.rows:
            _check_count(f"{place}.rows", len(call.rows), asked, "one for each prompt")
            _check_limits(f"{place}.rows", 0, max(call.rows), rollouts)

    def _check_reward_call(self, place: str, call: RewardCall, count: int | None) -> None:
        functions = len(self.record.settings.reward_weights)
        limits = f"one of {functions} settings.reward_weights, from 0"
        _need(call.index < functions, f"{place}.index", str(call.index), limits)
        size = len(call.returned) if count is None else count
        for name in ("returned", "again", "backwards", "alone", "together", "evaluated"):
            values = getattr(call, name)
            if values is not None:
                _check_count(f"{place}.{name}", len(values), size, "one for each rollout")
        _check_ids(f"{place}.columns.completion_ids", call.columns.get("completion_ids", ()), None)


def _count(place: str, generation: Generation) -> int | None:
    """Return the number of rollouts, None where nothing tells it. All that tell it must agree."""
    found = {
        "rows": len(generation.rows) or None,
        "messages": None if generation.messages is None else len(generation.messages),
        "rewards": _length(generation.rewards),
        "batch": None if generation.batch is None else _rows(generation.batch),
    }
    told = {name: count for name, count in found.items() if count is not None}
    first = next(iter(told), "")
    for name, count in told.items():
        _check_count(f"{place}.{name}", count, told[first], f"as {first}")
    return told.get(first)


def _rows(batch: Batch) -> int | None:
    return _length(batch.completion_ids) or _length(batch.advantages)


def _length(tensor: Tensor | None) -> int | None:
    return tensor.shape[0] if tensor is not None and tensor.dim() else None


def _check_known(key: str, logprobs: Tensor | None, batch: Batch) -> None:
    """Check that log-probabilities are numbers wherever the loss counts a token."""
    real = logprobs is None or not logprobs[batch.loss_mask.bool()].isnan().any()
    _need(real, key, "NaN where the loss counts a token", "numbers there")


# --- one tensor, or lists of numbers


def _need(holds: object, key: str, found: str, expected: str) -> None:
    if not holds:
        raise InputError(f"key '{key}' is {found}, expected {expected}")


def _check_real(key: str, tensor: Tensor, *shapes: Shape) -> None:
    """Check a tensor of floating point numbers, of one of these shapes."""
    _need(tensor.is_floating_point(), key, f"of type {tensor.dtype}", "a floating point type")
    _check_shape(key, tensor, shapes)


def _check_whole(key: str, tensor: Tensor, count: int | None, *shapes: Shape) -> None:
    """Check a tensor of whole numbers from 0, below `count`, of one of these shapes."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    _need(whole, key, f"of type {tensor.dtype}", "an integer type")
    _check_shape(key, tensor, shapes)
    if tensor.numel():
        _check_limits(key, int(tensor.min()), int(tensor.max()), count)


def _check_ids(key: str, rows: Sequence[Any], count: int | None) -> None:
    """Check lists of token ids, each below `count`."""
    for number, row in enumerate(rows):
        is_list = isinstance(row, list)
        wrong = [x for x in row if type(x) is not int] if is_list else row
        _need(is_list and not wrong, f"{key}.{number}", short(wrong), "a list of token ids")
        _check_limits(f"{key}.{number}", min(row, default=0), max(row, default=-1), count)


def _check_count(key: str, found: int, expected: int, what: str) -> None:
    _need(found == expected, key, f"of length {found}", f"{expected}, {what}")


def _check_shape(key: str, tensor: Tensor, shapes: Sequence[Shape]) -> None:
    found = tuple(tensor.shape)
    fits = any(
        len(each) == len(found)
        and all(w in (None, got) for got, w in zip(found, each, strict=True))
        for each in shapes
    )
    words = (", ".join("any" if n is None else str(n) for n in each) for each in shapes)
    said = " or ".join(f"[{each}]" for each in words)
    _need(fits, key, f"of shape {list(found)}", said)


def _check_limits(key: str, least: int, most: int, count: int | None) -> None:
    inside = least >= 0 and (count is None or most < count)
    limits = "0 or more" if count is None else f"from 0 to {count - 1}"
    _need(inside, key, f"{short(least if least < 0 else most)} somewhere", limits)
