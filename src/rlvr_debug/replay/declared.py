"""Algorithms by their names, and what a run declares to compute on purpose instead of GRPO as it is set.

A declared segment is compared with the declared formula; everything else is judged as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlvr_debug.errors import InputError, hint, reason

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr_debug.replay.settings import Settings

# By segment and name, the knobs of that segment's formula. Losses leave the advantages as they are, and the reverse.
ALGORITHMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "advantages": {
        # (r - mean) / std of the group: arXiv 2402.03300, section 4.1.2
        "grpo": {"scale": "group"},
        # r - mean: arXiv 2503.20783, section 3.2
        "dr_grpo": {"scale": "none"},
        # r - mean of the others: arXiv 2402.14740, eq. 8
        "rloo": {"centre": "leave one out", "scale": "none"},
        # r - sum(length r) / sum(length): arXiv 2505.23585, eq. 8
        "opo": {"centre": "by length", "scale": "none"},
        # (r - mean) over the share of rewards that are not 0: arXiv 2504.02546, eq. 8
        "gpg": {"scale": "not 0"},
        # each reward by its own spread first: arXiv 2601.05242, eq. 4
        "gdpo": {"aggregation": "normalize_then_sum"},
        # r, and r - mean of the group, normalised over all tokens: arXiv 2501.03262, eq. 5 and 6
        "reinforce++": {"centre": "none", "scale": "tokens"},
        "reinforce++-baseline": {"scale": "tokens"},
    },
    "loss": {
        **{
            name: {"loss_type": name}
            for name in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "vespo")
        },
        "cispo": {"loss_type": "cispo"},  # -sg(min(ratio, high)) A log p: arXiv 2506.13585, eq. 4
        "sapo": {"loss_type": "sapo"},  # -4 / T sigmoid(T (ratio - 1)) A: arXiv 2511.20347, eq. 6
        # -A exp(mean of clipped log-ratios): arXiv 2507.20673, eq. 4; the rest of GRPO's settings it has not
        "gmpo": {
            "loss_type": "gmpo",
            "importance_sampling_level": "token",
            "entropy_coef": 0.0,
            "delta": None,
            "off_policy_mask_threshold": None,
            "use_bias_correction_kl": False,
        },
        "gspo": {"importance_sampling_level": "sequence"},  # arXiv 2507.18071, eq. 7
        "gspo-token": {"importance_sampling_level": "sequence_token"},  # the same, eq. 13
        "gpg": {"ratio": False},  # -A log p: arXiv 2504.02546, eq. 9
        # -sg(min(ratio, 20)) A log p, while p is within a distance of the old p: arXiv 2602.04879, section 5
        "dppo-tv": {"loss_type": "dppo-tv"},
        "dppo-kl": {"loss_type": "dppo-kl"},
    },
}


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


def expect(*, advantages: Declared | None = None, loss: Declared | None = None) -> None:
    """Declare what this program's training computes on purpose: the check compares these segments with that.

    Each is a name that ALGORITHMS has, or a function of AdvantageInputs or LossInputs. None: GRPO, as it is set.
    """
    for segment, what in (("advantages", advantages), ("loss", loss)):
        _expected.pop(segment, None)
        if what is not None:
            _expected[segment] = _known(segment, what)


def _known(segment: str, what: Declared) -> Declared:
    known = ALGORITHMS.get(segment)
    if known is None:
        raise InputError(
            f"--expect: no segment '{segment}' can be declared: {hint(segment, ALGORITHMS)}"
        )
    if isinstance(what, str) and what not in known:
        raise InputError(f"--expect {segment}: no algorithm '{what}': {hint(what, known)}")
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
    """Return the knobs of the algorithm that is declared by its name."""
    what = own.declared.get(segment)
    return ALGORITHMS[segment][what] if isinstance(what, str) else {}


def called(what: Callable[[Any], Any], inputs: AdvantageInputs | LossInputs) -> Any:
    """Return what a declared function returns. Raise InputError, one line, where it fails."""
    try:
        return what(inputs)
    except Exception as error:  # the user's
        raise InputError(f"declared {declared_text(what)}: {reason(error)}") from None


def declared_text(what: Declared) -> str:
    """Return what is declared in a word."""
    return (
        what if isinstance(what, str) else f"`{getattr(what, '__qualname__', type(what).__name__)}`"
    )
