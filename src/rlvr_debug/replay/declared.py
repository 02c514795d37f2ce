"""Algorithms by their names, and what a run declares to compute on purpose instead of GRPO as it is set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.errors import InputError, hint, reason
from rlvr_debug.files import read_yaml

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr_debug.replay.settings import Settings

ALGORITHMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = read_yaml(
    Path(__file__).with_name("algorithms.yaml")
)
# what can be declared of a segment by a name: an algorithm, or that rewards are others on a later call
_NAMES: Mapping[str, Iterable[str]] = {**ALGORITHMS, "rewards": ("stateful",)}


@dataclass(frozen=True)
class AdvantageInputs:
    """What a declared function of *advantages* reads: it returns the advantage of each rollout, [B].

    rewards: [B, K], as they were used, NaN for none. lengths: [B], tokens that the loss counts. settings: what the trainer
    was asked for, such as group_size, reward_weights and advantage_epsilon; a group's rollouts follow each other.
    """

    rewards: Tensor
    lengths: Tensor
    settings: Settings


@dataclass(frozen=True)
class LossInputs:
    """What a declared function of *loss* reads: it returns a micro-batch's part of the update's loss, as backward gets it.

    logprobs, entropies: the policy's, [b, C]; the function is differentiated by both. old: those of sampling, or the
    policy's own without a gradient. reference, sampler, importance_weights: None where there are none. advantages: [b, 1]
    or [b, C]. mask: the tokens that count, as numbers, [b, C]. micro_batches, rows: of the update.
    """

    logprobs: Tensor
    entropies: Tensor | None
    old: Tensor
    reference: Tensor | None
    sampler: Tensor | None
    importance_weights: Tensor | None
    advantages: Tensor
    mask: Tensor
    micro_batches: int
    rows: int
    settings: Settings


Declared = str | Callable[[Any], Any]
"""The name of an algorithm, or a function of AdvantageInputs or LossInputs."""


@dataclass(frozen=True)
class Own:
    """What the run has of its own, by segment. overrides: whose code lies in it, in words. declared: what is meant.

    chosen: names of settings that are not the trainer's usual ones.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Declared] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()


_expected: dict[str, Declared] = {}


def expect(
    *, advantages: Declared | None = None, loss: Declared | None = None, rewards: str | None = None
) -> None:
    """Declare what this program's training computes on purpose, by a name or a function: the check compares with that.

    rewards: "stateful", where a function gives the same row another reward on a later call.
    """
    for segment, what in (("advantages", advantages), ("loss", loss), ("rewards", rewards)):
        _expected.pop(segment, None)
        if what is not None:
            _expected[segment] = _known(segment, what)


def _known(segment: str, what: Declared) -> Declared:
    known = _NAMES.get(segment)
    if known is None:
        hints = hint(segment, _NAMES)
        raise InputError(f"--expect: segment '{segment}' cannot be declared: {hints}")
    if isinstance(what, str) and what not in known:
        raise InputError(f"--expect {segment}: unknown algorithm '{what}': {hint(what, known)}")
    if not isinstance(what, str) and segment not in ALGORITHMS:
        raise InputError(f"expect({segment}=...): got a function, expected one of {[*known]}")
    return what


def named(words: Iterable[str]) -> dict[str, str]:
    """Return names of algorithms by segment. words: as `loss=gmpo`. Raise InputError for any other."""
    found = {}
    for word in words:
        segment, equals, name = word.partition("=")
        if not equals:
            raise InputError(f"--expect {word}: expected SEGMENT=NAME, such as loss=gmpo")
        _known(segment, name)
        found[segment] = name
    return found


def declare(names: Mapping[str, str]) -> None:
    """Declare algorithms by their names, by segment."""
    _expected.update({segment: _known(segment, name) for segment, name in names.items()})


def declared() -> dict[str, Declared]:
    """Return what is declared in this process, by segment."""
    return dict(_expected)


def knobs_declared(own: Own, segment: str) -> Mapping[str, Any]:
    """Return the knobs of the algorithm declared by name."""
    what = own.declared.get(segment)
    return ALGORITHMS[segment][what] if isinstance(what, str) else {}


def called(what: Callable[[Any], Any], inputs: AdvantageInputs | LossInputs) -> Any:
    """Return what a declared function returns. Raise InputError, one line, where it fails."""
    try:
        return what(inputs)
    except Exception as error:  # the user's
        raise InputError(f"declared {declared_text(what)} failed: {reason(error)}") from None


def declared_text(what: Declared) -> str:
    """Return what is declared in a word."""
    if isinstance(what, str):
        return what
    return f"`{getattr(what, '__qualname__', type(what).__name__)}`"
