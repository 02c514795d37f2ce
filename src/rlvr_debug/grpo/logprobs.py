"""Log-probabilities of given tokens under the policy; what sequences share from the first token on is computed once.

Axes: B sequences, b of one tree, T tokens, R trees, N nodes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.models.architectures import why_unread


@dataclass(frozen=True)
class Tree:
    """Sequences whose tokens are nodes of one tree: rows, lengths [b]; places [b, T], each token's node; ids, depth, seen [N]."""

    rows: Tensor
    lengths: Tensor
    places: Tensor
    ids: Tensor
    depth: Tensor
    seen: Tensor

    def visible(self) -> Tensor:
        """Return which nodes each may see, [N, N]: those above it, and itself, that may be attended to."""
        found = torch.zeros(2 * (len(self.ids),), dtype=torch.bool)
        for length, places in zip(self.lengths.tolist(), self.places, strict=True):
            own = places[:length]
            found[own[:, None], own] = torch.ones(length, length).bool().tril() & self.seen[own]
        return found


def prefix_trees(ids: Tensor, seen: Tensor, lengths: Tensor, *, shared: bool = True) -> list[Tree]:
    """Return the trees of these sequences, small ones first. ids, seen (what may be attended to): [B, T]; lengths: [B].

    A sequence joins a tree where it shares half of itself with the one before it, and the tree stays below two of the longest
    sequence: attention costs the square. shared: else each sequence is a tree.
    """
    keys = torch.where(torch.arange(ids.shape[1]) < lengths[:, None], 2 * ids + seen.long(), -1)
    # any order does in which sequences that begin alike are neighbours
    order = sorted(range(len(ids)), key=lambda row: keys[row].numpy().tobytes())
    most = 2 * int(lengths.max())
    trees: list[list[tuple[int, int]]] = []
    nodes = 0
    for last, row in zip([order[0], *order], order, strict=False):
        length = int(lengths[row])
        common = int((keys[last] == keys[row])[:length].long().cumprod(0).sum())
        joins = shared and bool(trees) and 2 * common >= length and nodes + length - common <= most
        if not joins:
            trees.append([])
            nodes, common = 0, 0
        trees[-1].append((row, common))
        nodes += length - common
    found = [_tree(each, ids, seen.bool(), lengths) for each in trees]
    return sorted(found, key=lambda tree: len(tree.ids))


def _tree(sequences: Sequence[tuple[int, int]], ids: Tensor, seen: Tensor, lengths: Tensor) -> Tree:
    """Return a tree of sequences, each given with the number of tokens that it shares with the one before it."""
    rows = torch.tensor([row for row, _ in sequences])
    places = torch.zeros(len(rows), ids.shape[1], dtype=torch.long)
    new: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    for at, (row, common) in enumerate(sequences):
        length = int(lengths[row])
        places[at, :common] = places[at - 1, :common]
        places[at, common:length] = torch.arange(count, count + length - common)
        count += length - common
        new.append(
            (ids[row, common:length], torch.arange(common, length), seen[row, common:length])
        )
    return Tree(rows, lengths[rows], places, *(torch.cat(each) for each in zip(*new, strict=True)))


@dataclass(frozen=True)
class Pass:
    """Trees that go through the model together, padded on the right: ids, positions [R, N]; places [b, T] in the flattened nodes.

    mask: [R, 1, N, N]; [R, N] where no tree has a branch; None where nothing but padding, which is last, is hidden.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    rows: Tensor
    places: Tensor


def passes(trees: Sequence[Tree], count: int) -> Iterator[Pass]:
    """Yield the trees in so many passes, the first tree again where there are fewer: processes run a shared model equally often."""
    bounds = [number * len(trees) // count for number in range(count + 1)]
    for a, b in itertools.pairwise(bounds):
        yield _packed(trees[a:b] or trees[:1])


def _packed(trees: Sequence[Tree]) -> Pass:
    ids, positions, seen = (
        pad_sequence([getattr(tree, name) for tree in trees], batch_first=True)
        for name in ("ids", "depth", "seen")
    )
    width = ids.shape[1]
    rows = torch.cat([tree.rows for tree in trees])
    places = torch.cat([tree.places + number * width for number, tree in enumerate(trees)])
    if all(len(tree.rows) == 1 for tree in trees):
        if all(bool(tree.seen.all()) for tree in trees):
            # the same bytes on a processor; on a GPU it is flash attention, which takes no mask
            return Pass(ids, torch.arange(width).expand_as(ids), None, rows, places)
        return Pass(ids, positions, seen, rows, places)
    # padding sees itself: of a row that sees nothing kernels of GPUs made NaN (pytorch issue 103963)
    mask = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1, 1)
    for own, tree in zip(mask[:, 0], trees, strict=True):
        own[: len(tree.ids), : len(tree.ids)] = tree.visible()
    return Pass(ids, positions, mask, rows, places)


def token_logprobs(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float = 1.0,
    *,
    chunk: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return log p(ids[b, t] | what the mask lets t see of ids[b, :t]) where `wanted`, else 0: [B, T].

    What sequences share goes through the model once, on a processor, in as many passes as `chunk` of them at a time would
    take; only what predicts a wanted token goes through the output layer. A model that is none of FAMILIES is called as is.
    """
    if why_unread(model.config.to_dict()):
        return _of_any_model(model, ids, attention_mask, wanted.bool(), temperature, chunk, dtype)
    device, wanted = ids.device, wanted.bool().cpu().clone()
    wanted[:, 0] = False
    lengths = (wanted * torch.arange(1, ids.shape[1] + 1)).amax(1).clamp(min=1)
    # a GPU is slower under the mask of a tree than without one: half of a step was attention's way back
    shared = model.config._attn_implementation == "sdpa" and device.type == "cpu"
    trees = prefix_trees(ids.cpu(), attention_mask.cpu(), lengths, shared=shared)
    result = torch.zeros(ids.shape, dtype=torch.promote_types(dtype, torch.float32), device=device)
    for each in passes(trees, -(-len(ids) // chunk)):
        at, t = wanted[each.rows].nonzero(as_tuple=True)
        nodes, which = torch.unique(each.places[at, t], return_inverse=True)
        before = torch.empty_like(nodes).index_put((which,), each.places[at, t - 1])
        hidden = model.model(
            input_ids=each.ids.to(device),
            attention_mask=None if each.mask is None else each.mask.to(device),
            position_ids=each.positions.to(device),
            use_cache=False,
        )[0]
        logits = model.lm_head(hidden.flatten(0, 1)[before.to(device)]).to(dtype)
        if temperature != 1:  # a copy of the largest tensor of a step
            logits = logits / temperature
        chosen = each.ids.flatten()[nodes].to(device)
        values = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        places = each.rows[at].to(device), t.to(device)
        result = result.index_put(places, values[which.to(device)].to(result.dtype))
    return result


def _of_any_model(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float,
    chunk: int,
    dtype: torch.dtype,
) -> Tensor:
    found = []
    for rows in torch.split(torch.arange(len(ids), device=ids.device), chunk):
        seen = attention_mask[rows].long()
        logits = model(ids[rows], attention_mask=seen, use_cache=False).logits[:, :-1].to(dtype)
        logits = logits / temperature
        chosen = logits.gather(2, ids[rows, 1:, None])[..., 0]
        found.append(F.pad(chosen - logits.logsumexp(-1), (1, 0)))
    known = wanted & (torch.arange(ids.shape[1], device=ids.device) > 0)
    return torch.cat(found).to(torch.promote_types(dtype, torch.float32)).where(known, 0.0)
