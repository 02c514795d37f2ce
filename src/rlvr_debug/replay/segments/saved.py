"""saved weights: what the trainer saves is the policy that it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import starmap
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import OWN, Gap, Instance, different, rounding
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Weights
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "saved weights"


def instances(record: Record, network: Network) -> Iterator[Instance]:
    if record.saved is None:
        raise NotSeen("nothing was saved")
    given = (record, network, record.saved)
    yield Instance("the end", partial(_compare, *given), partial(_described, *given))


def _compare(
    record: Record,
    network: Network,
    saved: Weights,
    *,
    first: bool = False,
    reference: bool = False,
    some: bool = False,
    stored: Literal["", "bfloat16", "float16", "float8_e4m3fn"] = "",
) -> Gap | None:
    """some: whether some tensors are of the beginning. stored: the type that tensors were rounded to."""
    if some or stored:
        return _tensors(record, network, saved, getattr(torch, stored) if stored else None)
    if (first and len(record.weights) < 2) or (reference and record.reference is None):
        return None
    if reference:
        assert record.reference is not None
        held = exact = record.reference
    else:
        held, exact = network.both(0 if first else len(record.weights) - 1)
    return Gap(math.inf, math.inf) if _missing(held, saved) else weights_gap(saved, held, exact)


def weights_gap(got: Weights, held: Weights, exact: Weights) -> Gap:
    """Compare the weights that both have.

    held: as the run's own precision merges an adapter; exact: the same in float64. What `got` is stored in rounds them too.
    """

    def squares(name: str, tensor: Tensor) -> Tensor:
        right, own = exact[name].double(), got[name].double()
        rounded = tensor.to(got[name].dtype).double()
        parts = (own - right, rounded - right, right)
        return torch.stack([part.square().sum() for part in parts])

    both = ((name, tensor) for name, tensor in held.items() if name in got)
    off, noise, size = sum(starmap(squares, both), torch.zeros(3).double()).sqrt().tolist()
    return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))


def _tensors(
    record: Record, network: Network, saved: Weights, stored: torch.dtype | None
) -> Gap | None:
    """Return whether each tensor is right, or that of the beginning; or right and rounded to a type."""
    held, first = network.policy(len(record.weights) - 1), network.policy(0)
    found = [name for name in held if name in saved and not torch.equal(saved[name], held[name])]
    if len(record.weights) < 2 or not found:
        return None
    other = first if stored is None else {n: t.to(stored).to(t.dtype) for n, t in held.items()}
    return different(sum(not torch.equal(saved[n].to(other[n].dtype), other[n]) for n in found))


def _missing(held: Weights, saved: Weights) -> list[str]:
    return [name for name in held if name not in saved and not _tied(held, saved, name)]


def _described(record: Record, network: Network, saved: Weights) -> str:
    held = network.policy(len(record.weights) - 1)
    missing = _missing(held, saved)
    return f"{len(missing)} of {len(held)} tensors are missing" if missing else ""


def _tied(held: Weights, saved: Weights, name: str) -> bool:
    """Return whether the same weights are saved under another name."""
    return any(
        tensor.shape == held[name].shape and torch.equal(tensor.to(held[name].dtype), held[name])
        for tensor in saved.values()
    )


KNOBS = knobs_of(_compare)
