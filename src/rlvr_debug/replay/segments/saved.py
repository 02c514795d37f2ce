"""saved weights: what the trainer saves is the policy that it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Weights
from rlvr_debug.replay.segments.gradient import less, norm

SEGMENT = "saved weights"
MERGED = 16  # units in the last place: an adapter is added in


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
    stored: str = "",
) -> Gap | None:
    """some: whether some tensors are of the beginning. stored: the type that tensors were rounded to."""
    if some or stored:
        return _tensors(record, network, saved, getattr(torch, stored) if stored else None)
    held = (
        record.reference if reference else network.policy(0 if first else len(record.weights) - 1)
    )
    if held is None or (first and len(record.weights) < 2):
        return None
    if _missing(held, saved):
        return Gap(math.inf, math.inf)
    known = {name: tensor for name, tensor in held.items() if name in saved}
    off, size = norm(less({name: saved[name] for name in known}, known)), norm(known)
    unit = max(EPSILON, *(torch.finfo(tensor.dtype).eps for tensor in saved.values()))
    return Gap(off / max(MERGED * unit * size, 1e-30), off / max(size, 1e-30))


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
