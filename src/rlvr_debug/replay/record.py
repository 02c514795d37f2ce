"""What is known of a few training steps, whoever trained.

Nothing here knows of a trainer. Tensors lie on the CPU. Axes: B rows of a generation, b of a micro-batch, P tokens
of a prompt, C of a completion (all turns after the prompt), K reward functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.settings import Sampling, Settings

__all__ = [
    "Batch",
    "Call",
    "Forward",
    "Generation",
    "MicroBatch",
    "ParameterGroup",
    "Record",
    "RewardCall",
    "Update",
    "Weights",
]

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Call:
    """One call of the sampler.

    prompts, outputs: token ids without padding; an output has the token that ended it. logprobs: of each output
    token, in the distribution that it was drawn from; empty where they are not known. used: the settings that the
    sampler worked with, None where they are not known. weights: which of Record.weights the trainer held then. rows:
    which rollout of the generation each is of; empty: a prompt is of the rollout whose tokens it begins with.
    """

    prompts: list[list[int]]
    outputs: list[list[int]]
    logprobs: list[list[float]] = field(default_factory=list)
    used: Sampling | None = None
    weights: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class RewardCall:
    """One reward function's call for a generation, and what the same function says when it is called otherwise.

    index: its place among the reward functions. columns: what it was given by name, one entry a row. returned: its rewards, NaN for none. again, backwards, alone:
    the same call repeated, with the rows in reverse order (put back in place), and row by row; None where it was not
    called again. evaluated: what evaluation makes of the same rollouts, where that is known.
    """

    name: str
    index: int
    columns: Mapping[str, list[Any]]
    returned: list[float]
    again: list[float] | None = None
    backwards: list[float] | None = None
    alone: list[float] | None = None
    evaluated: list[float] | None = None


@dataclass(frozen=True)
class Batch:
    """What is trained on, padded: prompts on the left, completions on the right.

    prompt_ids, prompt_mask: [B, P]; completion_ids, completion_mask (not padding), loss_mask (what the loss counts):
    [B, C]; advantages: [B], or [B, C]. The others are log-probabilities and weights, [B, C], where the trainer has
    them: old, the policy's before the batch's first update; reference; sampler; importance_weights, which correct
    for a sampler that is not the trainer, [B, C] or [B, 1]. rows: [B], which row of the generation this is, where
    that could be followed. Where tokens are not known they are [B, 0], and advantages are [0].
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    loss_mask: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    sampler: Tensor | None = None
    importance_weights: Tensor | None = None
    rows: Tensor | None = None

    def of_rows(self, index: Tensor) -> Batch:
        """Return these rows, [n]."""
        return Batch(**_rows(self, index))


@dataclass(frozen=True)
class Forward:
    """What the policy was given for the loss, however it was padded.

    input_ids, attention_mask, position_ids: [b, T]; None: not given. places: [b, C], where each token of the
    completion stands in its row, 0 for padding; None: they are the last C of every row.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    places: Tensor | None = None

    def of_rows(self, index: Tensor) -> Forward:
        """Return these rows, [n]."""
        return Forward(**_rows(self, index))


def _rows(value: Batch | Forward, index: Tensor) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    # one row may stand for all, as that of position ids does; advantages that are not known have none
    return {
        name: tensor if tensor is None or len(tensor) < 2 else tensor[index]
        for name, tensor in found.items()
    }


@dataclass
class Generation:
    """A batch of rollouts, from its rows to what is trained on.

    rows: of the data set, one for each rollout, in the order of the batch. messages: each rollout's completion as
    messages, where the prompts are messages. rewards: [B, K], as they were used, NaN for none. weights: as in Call.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    weights: int = 0
    calls: list[Call] = field(default_factory=list)
    messages: list[list[dict[str, Any]]] | None = None
    reward_calls: list[RewardCall] = field(default_factory=list)
    rewards: Tensor | None = None
    batch: Batch | None = None


@dataclass
class MicroBatch:
    """One forward and backward pass.

    generation: which of Record.generations it is of. given: what the loss was computed from. logprobs: the policy's,
    [b, C], and entropies where the loss reads them; the gradients are those of `loss`, what backward was called on,
    with respect to each.
    """

    generation: int
    given: Batch
    weights: int = 0
    forward: Forward | None = None
    logprobs: Tensor | None = None
    entropies: Tensor | None = None
    grad_logprobs: Tensor | None = None
    grad_entropies: Tensor | None = None
    loss: float | None = None


@dataclass(frozen=True)
class ParameterGroup:
    """A group of the optimizer: names of its parameters, its own learning rate and weight decay, SGD's momentum."""

    names: tuple[str, ...]
    learning_rate: float
    weight_decay: float
    momentum: float = 0.0


@dataclass
class Update:
    """One optimizer step.

    gradients: what the backward passes left, before the clip; clipped: what the optimizer read. before, after: which
    of Record.weights. optimizer: the name of its class. state, state_after: tensors by parameter and name. None: not
    known.
    touched: whether weights changed between the last backward pass and the step. norms: of the whole gradient before
    and after the clip, where only a part of it is kept, and the first one as the gradient's own precision sums it up,
    where that is known.
    """

    micro_batches: list[MicroBatch] = field(default_factory=list)
    gradients: dict[str, Tensor] | None = None
    clipped: dict[str, Tensor] | None = None
    before: int = 0
    after: int = 0
    optimizer: str = ""
    groups: list[ParameterGroup] = field(default_factory=list)
    state: dict[str, dict[str, Tensor]] | None = None
    state_after: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    touched: bool = False
    norms: tuple[float, ...] | None = None


@dataclass
class Record:
    """A few steps of somebody's trainer.

    Of a large model only a part is looked at. elements: by parameter, which of its numbers, flat, its gradients and
    its optimizer's state have; empty: all. rows: how many rows of a batch go through the reference; 0: all.

    trainer: its name and version. tokenizer: of transformers, None where there is none. tools: schemas of the tools.
    build: returns a fresh module of the architecture, with any weights. scalings: by module and adapter, what B A is
    multiplied by. weights: each distinct state of the policy's parameters, by name, in the order of time. trainable:
    names. decayed: names of the parameters that the settings' weight decay is for; None: each group says its own.
    unseen: by segment, why it cannot be looked at, though the record has what it reads.
    reference: all weights of the reference model by plain names, None without one. saved: what the trainer
    saves at the end, by plain names. notes: what the recorder changed or could not see.
    """

    trainer: str
    settings: Settings
    tokenizer: Any
    tools: list[Any] | None
    build: Callable[[], Any]
    scalings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    weights: list[Weights] = field(default_factory=list)
    trainable: tuple[str, ...] = ()
    decayed: tuple[str, ...] | None = None
    reference: Weights | None = None
    saved: Weights | None = None
    generations: list[Generation] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unseen: Mapping[str, str] = field(default_factory=dict)
    elements: Mapping[str, Tensor] = field(default_factory=dict)
    rows: int = 0

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return those numbers of a parameter's tensor that are looked at."""
        return tensor.flatten()[self.elements[name]] if name in self.elements else tensor

    def chosen(self, count: int, most: int = 0) -> Tensor:
        """Return which of `count` rows go through the reference: spread evenly, [n]. most: of a large model, 0 for `rows`."""
        most = min((most or self.rows) if self.rows else count, count)
        return torch.linspace(0, count - 1, most).long() if count else torch.zeros(0).long()
