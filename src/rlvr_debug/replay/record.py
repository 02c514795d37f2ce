"""What is known of a few training steps, whoever trained.

Nothing here knows of a trainer. Tensors lie on the CPU. Axes: B rows of a generation, b of a micro-batch, P tokens
of a prompt, C of a completion (all turns after the prompt), K reward functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Gt, Len, MinLen
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema
from torch import Tensor

from rlvr_debug.blocks import ONCE, Flag, NonNegative, Text
from rlvr_debug.replay.declared import Own
from rlvr_debug.replay.settings import Index, Name, Number, Part, Sampling, Settings

TOKENS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "loss_mask")
# of a row that an environment has opened: its own prompt, and schemas of the tools that it has there
UNOPENED, ROW_TOOLS = "prompt before reset", "tools of its environment"
_WORDS = {"Infinity": math.inf, "-Infinity": -math.inf}


class _ByName:
    """Annotates a tensor, of which a file says the name that it has among the tensors. wide: integers are read in 64 bits."""

    def __init__(self, wide: bool = False) -> None:
        self.wide = wide

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        return core_schema.with_info_plain_validator_function(self.read)

    def read(self, name: Any, info: ValidationInfo) -> Tensor:
        tensors: Mapping[str, Tensor] = info.context or {}
        if not isinstance(name, str) or name not in tensors:
            raise PydanticCustomError("no_tensor", "the name of a tensor of tensors.safetensors")
        found = tensors[name]
        whole = not (found.is_floating_point() or found.is_complex())
        return found.long() if self.wide and whole else found


def _real(told: Any) -> float:
    """Return a number of a list, in which JSON's null is NaN, and infinity a word."""
    found = math.nan if told is None else _WORDS.get(told) if isinstance(told, str) else told
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise PydanticCustomError("no_real", "a number, null, 'Infinity', '-Infinity'")
    return float(found)


def _object(told: Any) -> Any:
    if not isinstance(told, dict):
        raise PydanticCustomError("dict_type", "object")
    return told


def _message(told: Any) -> Any:
    if not isinstance(_object(told).get("role"), str):
        raise PydanticCustomError("no_role", "a message with the key 'role'")
    return told


def _row(told: dict[str, Any]) -> dict[str, Any]:
    prompt = told.get("prompt", "")
    for message in prompt if isinstance(prompt, list) else ():
        _message(message)
    if not isinstance(prompt, str | list):
        raise PydanticCustomError("no_prompt", "a prompt that is text or messages")
    return told


Held = Annotated[Tensor, _ByName()]
Wide = Annotated[Tensor, _ByName(wide=True)]
Weights = Mapping[Text, Held]
_Real = Annotated[float, AllowInfNan(), BeforeValidator(_real)]
_Names = Annotated[tuple[Text, ...], ONCE]
_Row = Annotated[dict[str, Any], AfterValidator(_row)]
_Message = Annotated[dict[str, Any], BeforeValidator(_message)]


def _empty() -> Tensor:
    return torch.zeros(0)


@dataclass(frozen=True)
class Call(Part):
    """One call of the sampler.

    prompts, outputs: token ids without padding; an output has the token that ended it. logprobs: in the distribution that
    outputs were drawn from; empty where not known. used: the settings that it worked with. weights: which of Record.weights
    the trainer held then. rows: which rollout each is of; empty: that whose tokens a prompt begins with.
    """

    prompts: list[Annotated[list[Index], MinLen(1)]]
    outputs: list[list[Index]]
    logprobs: list[list[_Real]] = field(default_factory=list)
    used: Sampling | None = None
    weights: Index | None = 0
    rows: Annotated[list[Index], ONCE] = field(default_factory=list)


@dataclass(frozen=True)
class RewardCall(Part):
    """One reward function's call for a generation, and what it says otherwise.

    index: its place among the functions. columns: what it was given by name, one entry a row. returned: NaN for none. again,
    backwards, alone: repeated, with rows reversed (put back in place), row by row. together: by another process, given the
    rows of all. evaluated: what evaluation makes of them. in_training_mode: of a model, whose dropout is on.
    """

    name: Text
    index: Index
    columns: Mapping[str, list[Any]]
    returned: list[_Real]
    again: list[_Real] | None = None
    backwards: list[_Real] | None = None
    alone: list[_Real] | None = None
    together: list[_Real] | None = None
    evaluated: list[_Real] | None = None
    in_training_mode: Flag = False


class Rows(Part):
    """Tensors whose first axis is rows; one row may stand for all, as that of position ids does."""

    def of_rows(self, index: Tensor) -> Self:
        """Return these rows, [n]."""
        kind: Any = self
        found = {field.name: getattr(self, field.name) for field in fields(kind)}
        several = {n: t[index] for n, t in found.items() if t is not None and len(t) > 1}
        return replace(kind, **several)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Batch(Rows):
    """What is trained on, padded: prompts on the left, completions on the right; what is not known has no columns.

    loss_mask: what the loss counts; advantages: [B], or [B, C]. Log-probabilities, [B, C]: old, of before the batch's first
    update; reference; sampler. importance_weights correct for a sampler that is not the trainer, [B, C] or [B, 1]. rows: of
    the generation, [B].
    """

    prompt_ids: Wide = field(default_factory=_empty)
    prompt_mask: Wide = field(default_factory=_empty)
    completion_ids: Wide = field(default_factory=_empty)
    completion_mask: Wide = field(default_factory=_empty)
    loss_mask: Wide = field(default_factory=_empty)
    advantages: Wide = field(default_factory=_empty)
    old: Wide | None = None
    reference: Wide | None = None
    sampler: Wide | None = None
    importance_weights: Wide | None = None
    rows: Wide | None = None


@dataclass(frozen=True)
class Forward(Rows):
    """What the policy was given for the loss, however it was padded.

    places: [b, C], where each token of the completion stands in its row, 0 for padding; None: they are the last of every row.
    """

    input_ids: Wide
    attention_mask: Wide | None = None
    position_ids: Wide | None = None
    places: Wide | None = None


@dataclass(frozen=True)
class Changed(Part):
    """Settings that a callback changed while the run trained, such as by an adaptive KL; None: those of the record.

    temperature: what log-probabilities are divided by, and the sampler is asked for.
    """

    reward_weights: tuple[Number, ...] | None = None
    kl_beta: Number | None = None
    clip: Number | None = None
    epsilon_high: Number | None = None
    temperature: Annotated[float, Gt(0)] | None = None

    def values(self) -> dict[str, Any]:
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in found if value is not None}


@dataclass
class Generation(Part):
    """A batch of rollouts, from its rows, one a rollout, to what is trained on.

    messages: completions as messages. rewards: [B, K], as they were used, NaN for none. processes: whose each rollout is.
    """

    rows: list[_Row] = field(default_factory=list)
    weights: Index | None = 0
    calls: list[Call] = field(default_factory=list)
    messages: list[list[_Message]] | None = None
    reward_calls: list[RewardCall] = field(default_factory=list)
    rewards: Held | None = None
    batch: Batch | None = None
    processes: list[Index] = field(default_factory=list)
    changed: Changed = Changed()


@dataclass
class MicroBatch(Part):
    """One forward and backward pass.

    given: what the loss was computed from. Gradients are those of what backward was called on; of several processes, a
    process' share. rescaled: what the trainer's loss was multiplied by between its method and that. others: the norm of its
    gradient with respect to log-probabilities of other sequences. rounding: how far off `logprobs` may be, in nats, beside
    their own last place.
    """

    generation: Index
    given: Batch
    weights: Index = 0
    forward: Forward | None = None
    logprobs: Held | None = None
    entropies: Held | None = None
    grad_logprobs: Held | None = None
    grad_entropies: Held | None = None
    loss: Number | None = None
    rescaled: Number = 1.0
    others: NonNegative = 0.0
    rounding: NonNegative = 0.0
    process: Index = 0


@dataclass(frozen=True)
class ParameterGroup(Part):
    """A group of the optimizer; options: further ones that are asked for, by the names of the optimizer's class."""

    names: tuple[Text, ...]
    learning_rate: Number
    weight_decay: Number
    momentum: Number = 0.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Update(Part):
    """One optimizer step.

    gradients, clipped: what backward left, and what the optimizer read. before, after: which of Record.weights. touched:
    whether weights changed between the last backward pass and the step. rescaled: what the gradients were multiplied by between
    that pass and the clip. norms: of the whole gradient before and after the
    clip, where only a part is kept, and the first as the gradient's own precision sums it up.
    """

    micro_batches: list[MicroBatch] = field(default_factory=list)
    gradients: dict[str, Held] | None = None
    clipped: dict[str, Held] | None = None
    before: Index = 0
    after: Index = 0
    optimizer: Text = ""
    groups: list[ParameterGroup] = field(default_factory=list)
    state: dict[str, dict[str, Held]] | None = None
    state_after: dict[str, dict[str, Held]] = field(default_factory=dict)
    touched: Flag = False
    rescaled: Number = 1.0
    norms: Annotated[tuple[NonNegative, ...], Len(2, 3)] | None = None
    changed: Changed = Changed()


MASTER = "master"  # of an optimizer's state: what it steps in more precision, where the weights are copies of it


@dataclass(frozen=True)
class Process(Part):
    """What one of several processes held, as digests that are the same where the numbers are.

    settings: None where they are the record's. weights: before the first update and after each. gradients, states: of each
    update. random: the state of what draws tokens, by generation.
    """

    settings: Settings | None = None
    weights: list[Mapping[Text, Text]] = field(default_factory=list)
    gradients: list[Mapping[Text, Text]] = field(default_factory=list)
    states: list[Mapping[Text, Text]] = field(default_factory=list)
    random: list[Text] = field(default_factory=list)


@dataclass
class Record(Part):
    """A few steps of somebody's trainer; of a large model only a part is looked at.

    elements: by parameter, which of its numbers, flat; empty: all. rows: how many of a batch go through the reference; 0:
    all. build: returns a fresh module of the architecture. scalings: by module and adapter, what B A is multiplied by.
    weights: each distinct state of the policy, in the order of time. decayed: parameters that weight decay is for; None: each
    group says its own. unseen: by segment, why it cannot be looked at. reference, saved: by plain names. notes: what the
    recorder changed or could not see. processes: empty where it was one. own: in no file.
    """

    elsewhere: ClassVar = ("tokenizer", "build", "own")

    trainer: Name
    settings: Settings
    tokenizer: Annotated[Any, Field(default=None)]
    tools: Annotated[list[Annotated[Any, AfterValidator(_object)]] | None, Field(default=None)]
    build: Annotated[Callable[[], Any], Field(default=None)]
    scalings: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    weights: list[Weights] = field(default_factory=list)
    trainable: _Names = ()
    decayed: _Names | None = None
    reference: Weights | None = None
    saved: Weights | None = None
    generations: list[Generation] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    notes: list[Text] = field(default_factory=list)
    unseen: Mapping[str, Name] = field(default_factory=dict)
    elements: Weights = field(default_factory=dict)
    rows: Index = 0
    processes: list[Process] = field(default_factory=list)
    own: Any = field(default_factory=Own)

    @property
    def size(self) -> int:
        """Return how many processes trained together."""
        return max(len(self.processes), 1)

    def settings_of(self, part: Generation | Update) -> Settings:
        """Return the settings in effect then."""
        changed = part.changed.values()
        if heat := changed.pop("temperature", None):
            changed["sampling"] = replace(self.settings.sampling, temperature=heat)
        return replace(self.settings, **changed)

    def temperature_at(self, micro: MicroBatch) -> float:
        """Return what the policy's log-probabilities are to be divided by in this micro-batch."""
        own = (u for u in self.updates if any(each is micro for each in u.micro_batches))
        return self.settings_of(next(own, self.generations[micro.generation])).sampling.temperature

    @classmethod
    def required(cls, given: Mapping[str, Any]) -> list[str]:
        return ["trainer", "settings"]

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return those numbers of a parameter's tensor that are looked at."""
        return tensor.flatten()[self.elements[name]] if name in self.elements else tensor

    def chosen(self, count: int, most: int = 0) -> Tensor:
        """Return which of `count` rows go through the reference: spread evenly, [n]. most: of a large model, 0 for `rows`."""
        most = min((most or self.rows) if self.rows else count, count)
        return torch.linspace(0, count - 1, most).long() if count else torch.zeros(0).long()
