"""A sampler in process: a model decoded from a copy of its weights, with a key-value cache per conversation.

A loop over plain tensors costs a fraction of what a general generate() spends on a small model. The cache is kept between
turns, and equal conversations, as a group's are at first, are read once. What a family lacks is None in its blocks.

Axes: B conversations, N new tokens, T cached tokens, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.models.architectures import LINEARS, Architecture, rope_of
from rlvr_debug.sampling.base import PolicySampler, Request, Sample


class InProcessSampler(PolicySampler):
    """config: the model's config.json; ends: the tokens that end a turn."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], ends: Collection[int]
    ) -> None:
        self._sizes = Architecture.of(config)
        self._epsilon: float = config["rms_norm_eps"]
        self._frequencies = frequencies(config, self._sizes.head_size)
        self._ends = frozenset(ends)
        self._caches: dict[int, _Cache] = {}
        self.load(weights)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy new weights in and forget every cache, which the old ones had computed."""
        self._views: dict[str, Tensor] = {}

        def copied(*names: str) -> Tensor:
            """One tensor with these weights in a row, which `weights` gives back as views of it."""
            parts = [weights[name].cpu() for name in names]
            copy = torch.cat(parts)
            self._views |= zip(names, torch.split(copy, [len(part) for part in parts]), strict=True)
            return copy

        def biases(prefix: str, *names: str) -> Tensor | None:
            if names[0] not in self._sizes.biased:
                return None
            return copied(*(f"{prefix}.{name}.bias" for name in names))

        self._embedding = copied("model.embed_tokens.weight")
        self._head = self._embedding if self._sizes.tied else copied("lm_head.weight")
        self._norm = copied("model.norm.weight")
        self._blocks = []
        for i in range(self._sizes.layers):
            layer = f"model.layers.{i}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            self._blocks.append(
                _Block(
                    input_norm=copied(f"{layer}.input_layernorm.weight"),
                    qkv=copied(*(f"{attention}.{name}.weight" for name in LINEARS[:3])),
                    qkv_bias=biases(attention, *LINEARS[:3]),
                    head_norms=self._head_norms(copied, attention),
                    out=copied(f"{attention}.o_proj.weight"),
                    out_bias=biases(attention, "o_proj"),
                    mlp_norm=copied(f"{layer}.post_attention_layernorm.weight"),
                    gate_up=copied(*(f"{mlp}.{name}.weight" for name in LINEARS[4:6])),
                    gate_up_bias=biases(mlp, *LINEARS[4:6]),
                    down=copied(f"{mlp}.down_proj.weight"),
                    down_bias=biases(mlp, "down_proj"),
                )
            )
        self.reset()

    def _head_norms(self, copied: Callable[[str], Tensor], attention: str) -> Tensor | None:
        """Return the norms of each head that is rotated, [H, D]: of the queries', then of the keys'."""
        if not self._sizes.head_norms:
            return None
        both = ((self._sizes.heads, "q_norm"), (self._sizes.kv_heads, "k_norm"))
        rows = [copied(f"{attention}.{name}.weight").expand(count, -1) for count, name in both]
        return torch.cat(rows)

    def weights(self) -> dict[str, Tensor]:
        return dict(self._views)

    def reset(self) -> None:
        self._caches.clear()

    @torch.no_grad()
    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        generator = torch.Generator().manual_seed(seed)
        # equal histories go through the model once; `which` is the one that each request has
        distinct = {tuple(request.ids): request for request in requests}
        number = {history: i for i, history in enumerate(distinct)}
        which = torch.tensor([number[tuple(request.ids)] for request in requests])
        cache, fresh = self._gather(list(distinct.values()), max_new_tokens)
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        # `rows` are the requests that still write; the cache holds these and no others
        rows = list(range(len(requests)))
        new = pad_sequence([torch.tensor(tokens) for tokens in fresh], batch_first=True)
        counts = torch.tensor([len(tokens) for tokens in fresh])
        for step in range(max_new_tokens):
            hidden = self._read(new, counts, cache)
            logits = self._logits(hidden[torch.arange(len(hidden)), counts - 1])
            if step == 0 and len(distinct) < len(requests):
                logits, cache = logits[which], cache.rows(which)
            chosen, values = self._choose(logits, temperature, generator)
            going = []
            drawn = zip(chosen[:, 0].tolist(), values[:, 0].tolist(), strict=True)
            for b, (token, value) in enumerate(drawn):
                ids[rows[b]].append(token)
                logprobs[rows[b]].append(value)
                if token not in self._ends:
                    going.append(b)
            if len(going) < len(rows):
                keep = torch.tensor(going, dtype=torch.long)
                for b in set(range(len(rows))) - set(going):
                    self._store(requests[rows[b]], ids[rows[b]], cache, b)
                rows = [rows[b] for b in going]
                if not rows:
                    break
                cache, chosen = cache.rows(keep), chosen[keep]
            new, counts = chosen, torch.ones(len(rows), dtype=torch.long)
        for b, row in enumerate(rows):
            self._store(requests[row], ids[row], cache, b)
        return [
            Sample(tokens, values, tokens[-1] in self._ends)
            for tokens, values in zip(ids, logprobs, strict=True)
        ]

    def _choose(
        self, logits: Tensor, temperature: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, [B, 1] each, from logits [B, V]."""
        distribution = (logits / (temperature or 1.0)).log_softmax(-1)
        if temperature:
            chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
        else:
            chosen = distribution.argmax(-1, keepdim=True)
        return chosen, distribution.gather(1, chosen)

    def _gather(
        self, requests: list[Request], max_new_tokens: int
    ) -> tuple[_Cache, list[list[int]]]:
        """A cache for the batch, filled with what is known, and each request's unknown ids."""
        known = [self._caches.pop(request.slot, None) for request in requests]
        lengths = [
            _common_prefix(cache.ids, request.ids[:-1]) if cache else 0
            for cache, request in zip(known, requests, strict=True)
        ]
        fresh = [request.ids[n:] for n, request in zip(lengths, requests, strict=True)]
        # new tokens are written for all rows at once, as many as the longest has
        capacity = max(lengths) + max(map(len, fresh)) + max_new_tokens
        batch = replace(self._empty(len(requests), capacity), lengths=torch.tensor(lengths))
        for b, (cache, length) in enumerate(zip(known, lengths, strict=True)):
            if cache and length:
                batch.keys[:, b, :, :length] = cache.keys[:, 0, :, :length]
                batch.values[:, b, :, :length] = cache.values[:, 0, :, :length]
        return batch, fresh

    def _store(self, request: Request, sampled: list[int], cache: _Cache, b: int) -> None:
        # the last sampled token has not been through the model yet
        length = int(cache.lengths[b])
        self._caches[request.slot] = _Cache(
            cache.keys[:, b : b + 1, :, :length].clone(),
            cache.values[:, b : b + 1, :, :length].clone(),
            cache.lengths[b : b + 1].clone(),
            (request.ids + sampled)[:length],
        )

    @torch.no_grad()
    def logprobs(self, ids: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities, at temperature 1, of all tokens but the first of each of these sequences."""
        new = pad_sequence([torch.tensor(tokens) for tokens in ids], batch_first=True)
        counts = torch.tensor([len(tokens) for tokens in ids])
        hidden = self._read(new, counts, self._empty(len(ids), new.shape[1]))
        distribution = self._logits(hidden[:, :-1]).log_softmax(-1)
        found = distribution.gather(2, new[:, 1:, None])[..., 0]
        return [row[: len(tokens) - 1].tolist() for row, tokens in zip(found, ids, strict=True)]

    def _empty(self, count: int, capacity: int) -> _Cache:
        sizes = self._sizes
        shape = (sizes.layers, count, sizes.kv_heads, capacity, sizes.head_size)
        return _Cache(
            torch.zeros(shape), torch.zeros(shape), torch.zeros(count, dtype=torch.long), []
        )

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = F.rms_norm(hidden, hidden.shape[-1:], self._norm, self._epsilon)
        return F.linear(normed, self._head)

    def _read(self, new: Tensor, counts: Tensor, cache: _Cache) -> Tensor:
        """Append new tokens [B, N], of which `counts` [B] are real, and return their last hidden states [B, N, D]."""
        batch, width = new.shape
        heads, kv_heads = self._sizes.heads, self._sizes.kv_heads
        positions = cache.lengths[:, None] + torch.arange(width)
        angles = positions[..., None].float() * self._frequencies
        cos = angles.cos().repeat(1, 1, 2)[:, :, None]
        sin = torch.cat([-angles.sin(), angles.sin()], -1)[:, :, None]
        end = int(positions.max()) + 1
        # causal; what lies beyond a row's own tokens is overwritten before it is ever seen
        hidden_keys = torch.arange(end) > positions[:, None, :, None]
        mask = torch.zeros(hidden_keys.shape).masked_fill_(hidden_keys, -torch.inf)
        at = torch.arange(batch)[:, None], positions
        hidden = F.embedding(new, self._embedding)
        for block, keys, values in zip(self._blocks, cache.keys, cache.values, strict=True):
            normed = F.rms_norm(hidden, hidden.shape[-1:], block.input_norm, self._epsilon)
            mixed = F.linear(normed, block.qkv, block.qkv_bias)
            mixed = mixed.view(batch, width, -1, self._sizes.head_size)
            rotated = mixed[:, :, :-kv_heads]
            if block.head_norms is not None:
                size = self._sizes.head_size
                rotated = F.rms_norm(rotated, (size,), None, self._epsilon) * block.head_norms
            rotated = _rotate(rotated, cos, sin)
            keys[at[0], :, at[1]] = rotated[:, :, heads:]
            values[at[0], :, at[1]] = mixed[:, :, -kv_heads:]
            attended = F.scaled_dot_product_attention(
                rotated[:, :, :heads].transpose(1, 2),
                keys[:, :, :end],
                values[:, :, :end],
                attn_mask=mask,
                enable_gqa=heads != kv_heads,
            )
            hidden = hidden + F.linear(
                attended.transpose(1, 2).flatten(2), block.out, block.out_bias
            )
            normed = F.rms_norm(hidden, hidden.shape[-1:], block.mlp_norm, self._epsilon)
            gate, up = F.linear(normed, block.gate_up, block.gate_up_bias).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, block.down, block.down_bias)
        cache.lengths += counts
        return hidden


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x, [B, N, H, D], by halves (arXiv 2104.09864); the first half of `sin` is negated."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([second, first], -1) * sin


def _common_prefix(a: list[int], b: list[int]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next(i for i, (x, y) in enumerate(zip(a, [*b, -1], strict=False)) if x != y)


@dataclass(frozen=True)
class _Block:
    """The weights of one. What the model's family has none of is None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass
class _Cache:
    """Keys and values [layer, B, H, T, D], of which `lengths` [B] are filled; `ids` when B is 1."""

    keys: Tensor
    values: Tensor
    lengths: Tensor
    ids: list[int]

    def rows(self, keep: Tensor) -> _Cache:
        keys, values = (x.index_select(1, keep) for x in (self.keys, self.values))
        return _Cache(keys, values, self.lengths[keep], [])


def frequencies(config: Mapping[str, Any], head_size: int) -> Tensor:
    """Return radians per position, [D / 2]. config: a config.json whose family is known."""
    rope = rope_of(config)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    plain: Tensor = 1.0 / rope["rope_theta"] ** exponents
    if rope["rope_type"] == "default":
        return plain
    low, high, factor = (
        float(rope[key]) for key in ("low_freq_factor", "high_freq_factor", "factor")
    )
    length = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    # turns that a frequency makes over the lengths of pretraining: few are slowed down, many stay, some in between
    turns = length * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = (1 - kept) * plain / factor + kept * plain
    return scaled
