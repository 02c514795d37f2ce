"""saved weights: what the trainer saves is the policy that it trained."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, Gap, Instance
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Weights
from rlvr_debug.replay.segments.gradient import less, norm

SEGMENT = "saved weights"
_MERGED = 16  # units in the last place: an adapter is added in


def instances(record: Record, network: Network) -> Iterator[Instance]:
    if record.saved is None:
        raise NotSeen("nothing was saved")
    saved = record.saved

    def compare(number: int = -1, reference: bool = False) -> Gap | None:
        held: Weights | None
        if reference:
            held = record.reference
        else:
            place = number if number >= 0 else len(record.weights) - 1
            held = network.policy(place)
        if held is None or (number >= 0 and len(record.weights) < 2):
            return None
        known = {name: tensor for name, tensor in held.items() if name in saved}
        missing = [name for name in held if name not in saved and not _tied(held, saved, name)]
        off = norm(less({name: saved[name] for name in known}, known))
        size = norm(known)
        unit = max(EPSILON, *(torch.finfo(t.dtype).eps for t in saved.values()))
        share = off / max(_MERGED * unit * size, 1e-30)
        return Gap(float("inf") if missing else share, off / max(size, 1e-30))

    def describe() -> str:
        held = network.policy(len(record.weights) - 1)
        missing = [name for name in held if name not in saved and not _tied(held, saved, name)]
        return f"{len(missing)} of {len(held)} tensors are missing" if missing else ""

    yield Instance("the end", compare, describe)


def _tied(held: Weights, saved: Weights, name: str) -> bool:
    """Return whether the same weights are saved under another name."""
    return any(
        tensor.shape == held[name].shape and torch.equal(tensor.to(held[name].dtype), held[name])
        for tensor in saved.values()
    )
