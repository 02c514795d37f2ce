"""What a study would take of GPUs, by arithmetic: memory, tokens, hours. Estimates; nothing here was measured.

Bytes, tokens, floating-point operations (FLOPs) and seconds throughout; N weights, N_t of them trained, K trainer GPUs, L
blocks of width h, V tokens in the vocabulary, w bytes of a weight as it lies there, a of an activation.

    on a GPU      ZeRO-3 (a copy each): weights w N / K (w N), gradients 4 N_t / K (4 N_t, twice with DDP's buckets),
                  optimizer 12 N_t / K (8 N_t), reference 4 N without an adapter, gathered 2 w times the largest of a block
                  and the output layer, sync w N gathered and 4 N merged
    activations   per token L (a (7 h + 3 kv + 4 i) + 16 h), with recomputation L w h and one block; logits 4 V per token
                  whose log-probability is computed, and V (2 a + 8) per token of the chunk at hand
    forward pass  2 FLOPs per weight and token, 2 L h per token and token of its length, 2 V h per wanted token
    update        3 forward passes in full, 2 with an adapter, 1 more with recomputation; times the iterations
    decoding      per token of all conversations: bytes of weights and cache over bandwidth, or FLOPs if these take longer
    a step        sampling, then training; a run 180 s of loading more; held-out evaluation on the server's GPUs
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlvr_debug.environments.task import Lengths
from rlvr_debug.models.architectures import Architecture


@dataclass(frozen=True)
class Gpu:
    """As its maker says: memory in bytes, dense bfloat16 FLOPs and bytes of memory a second."""

    memory: float
    flops: float
    bandwidth: float


# data sheets of NVIDIA's A100 80GB SXM and H100 SXM
GPUS = {
    "A100 80GB": Gpu(80e9, 312e12, 2.039e12),
    "H100 80GB": Gpu(80e9, 989e12, 3.35e12),
}
# shares of the above that a step of 7B reached (benchmarks.bench_gpu of 0bc8e9f on an H200: 0.298 by an adapter; 1.5B whole 0.24,
# 0.5B 0.10), and that reading weights token by token is taken to reach
_FLOPS_SHARE = 0.3
_BANDWIDTH_SHARE = 0.6
# of a server beside weights and cache: CUDA's context, workspaces, activations
_SERVER_BYTES = 3e9
_HALF, _SINGLE = 2, 4  # bytes


@dataclass(frozen=True)
class Setup:
    """How one model is trained. rank: of the adapter, 0 for full fine-tuning; sharded: ZeRO-3 over the
    processes, else a copy each; sequences: that go through a process before a gradient is taken; chunk: of
    them at a time; logprobs: bytes of a logit as it is normalised.
    """

    model: Architecture
    processes: int
    sharded: bool
    rank: int
    bf16: bool
    recompute: bool
    sequences: int
    chunk: int
    logprobs: int = _SINGLE

    @property
    def trained(self) -> int:
        return self.model.adapter(self.rank) if self.rank else self.model.parameters

    @property
    def all(self) -> int:
        return self.model.parameters + (self.trained if self.rank else 0)

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return _HALF if self.bf16 else _SINGLE

    @property
    def weight_width(self) -> int:
        """Of a weight as it lies there: DeepSpeed holds all of them as they are computed in, else only
        frozen ones are."""
        return self.width if self.sharded or self.rank else _SINGLE


@dataclass(frozen=True)
class Memory:
    """Bytes on one trainer GPU. While the gradient is taken all but `sync` are there; at the sync
    the states are, and the whole model."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    gathered: float
    activations: float
    logits: float
    sync: float

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.reference

    @property
    def peak(self) -> float:
        return self.states + max(self.gathered + self.activations + self.logits, self.sync)


def trainer_memory(setup: Setup, tokens: int, wanted: int) -> Memory:
    """tokens: of one sequence, the longest; wanted: those of them whose log-probabilities are computed."""
    model, parts = setup.model, setup.processes if setup.sharded else 1
    # adapters outside of DeepSpeed, and all that is trained in full there, lie in single precision
    wide = 0 if setup.sharded else (_SINGLE - setup.weight_width) * setup.trained * bool(setup.rank)
    # and casts of those that are wider than what is computed with are kept for the way back
    casts = setup.width * model.layers * model.block * (setup.weight_width > setup.width)
    weights = (setup.weight_width * setup.all + wide) / parts + casts * (not setup.recompute)
    # DeepSpeed: a copy in single precision and its two moments; without it the weights are that copy
    optimizer = (12 if setup.sharded else 8) * setup.trained / parts
    # DDP exchanges gradients in buckets of the same size
    buckets = 2 if setup.processes > 1 and not setup.sharded else 1
    gradients = _SINGLE * setup.trained * buckets / parts
    reference = _SINGLE * model.parameters if not setup.rank else 0
    # the layer at work and the one fetched ahead; the output layer is the largest
    gathered = 2 * setup.weight_width * max(model.embedding, model.block) if setup.sharded else 0
    # all of the model, and what is sent: in single precision, the adapter added
    whole = setup.weight_width * model.parameters if setup.sharded else 0
    return Memory(
        weights,
        gradients,
        optimizer,
        reference,
        gathered,
        activation_bytes(setup, tokens * setup.sequences),
        logit_bytes(setup, wanted),
        whole + _SINGLE * model.parameters,
    )


def activation_bytes(setup: Setup, tokens: int) -> float:
    """What a pass over T tokens keeps for the way back: with recomputation each block's input, and all of one
    block for the chunk at hand."""
    model = setup.model
    kept, norms = _block_values(model), 4 * model.hidden * _SINGLE
    block = setup.width * kept + norms
    if not setup.recompute:
        return tokens * model.layers * block
    at_hand = tokens * min(setup.chunk, setup.sequences) / setup.sequences
    # what runs through the blocks is as wide as the embedding
    return tokens * model.layers * setup.weight_width * model.hidden + at_hand * block


def _block_values(model: Architecture) -> int:
    """Per token: the inputs of norms and linear layers, rotated queries and keys, values, attention's result,
    and four tensors of the gated layer."""
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    return 4 * model.hidden + 3 * queries + 3 * keys + 4 * model.intermediate


def logit_bytes(setup: Setup, wanted: int) -> float:
    """The logits of all sequences of a micro-batch are kept; of the chunk at hand there are those as they came
    out, their gradient twice and that of what came out."""
    vocab = setup.model.vocab
    at_hand = min(setup.chunk, setup.sequences) * wanted
    more = 2 * setup.width + 2 * setup.logprobs
    return vocab * (setup.logprobs * wanted * setup.sequences + more * at_hand)


def kv_bytes(model: Architecture, width: int) -> int:
    """Of one token in the server's cache: a key and a value per layer."""
    return 2 * model.layers * model.kv_heads * model.head_size * width


def cached_tokens(
    model: Architecture, gpu: Gpu, share: float, width: int, parts: int = 1, adapters: float = 0
) -> int:
    """Tokens that a server's cache holds. share: of the memory of each of its GPUs that it may take; parts:
    GPUs that the model is cut over; adapters: bytes."""
    left = share * gpu.memory * parts - width * model.parameters - adapters - _SERVER_BYTES * parts
    return max(0, int(left // kv_bytes(model, width)))


def adapter_slots(
    model: Architecture, gpu: Gpu, share: float, width: int, rank: int, tokens: int
) -> int:
    """Adapters that a server has beside a cache of so many tokens: vLLM's --max-loras."""
    free = cached_tokens(model, gpu, share, width) - tokens
    return max(0, free * kv_bytes(model, width) // (width * model.adapter(rank)))


def forward_flops(model: Architecture, tokens: float, wanted: float, length: float) -> float:
    """A pass: two per weight of the blocks and token, attention over half the length, logits where wanted."""
    blocks = 2 * model.layers * model.block * tokens
    attention = 2 * model.layers * model.heads * model.head_size * length * tokens
    return blocks + attention + 2 * model.embedding * wanted


def training_flops(setup: Setup, lengths: Lengths, rollouts: int, updates: int, kl: bool) -> float:
    """Of all processes and one step. The way back is a pass for the gradient of what comes in and, in full
    fine-tuning, one for that of the weights; recomputation is one more forward; the reference another."""
    tokens, wanted = rollouts * lengths.total, rollouts * lengths.sampled
    forward = forward_flops(setup.model, tokens, wanted, lengths.total)
    passes = (2 if setup.rank else 3) + (1 if setup.recompute else 0)
    return forward * (passes * updates + (1 if kl else 0))


def training_seconds(flops: float, gpu: Gpu, processes: int) -> float:
    return flops / (processes * gpu.flops * _FLOPS_SHARE)


def decode_seconds(
    model: Architecture, gpu: Gpu, width: int, running: float, length: float
) -> float:
    """One token for each of the running sequences: weights and cache are read once, or the products take longer."""
    weights = width * (model.parameters - (0 if model.tied else model.embedding))
    read = weights + running * length * kv_bytes(model, width)
    flops = forward_flops(model, running, running, 2 * length)
    return max(read / (gpu.bandwidth * _BANDWIDTH_SHARE), flops / (gpu.flops * _FLOPS_SHARE))


def sampling_seconds(
    model: Architecture, gpu: Gpu, width: int, lengths: Lengths, rollouts: int, at_once: int
) -> float:
    """All rollouts on one server: prompts and tool results are read once, replies go token by token, as many
    side by side as it answers at once."""
    fresh = rollouts * (lengths.total - lengths.sampled)
    prefill = forward_flops(model, fresh, rollouts * lengths.turns, lengths.total)
    rounds = math.ceil(rollouts / at_once)
    running = rollouts / rounds
    step = decode_seconds(model, gpu, width, running, lengths.total / 2)
    return prefill / (gpu.flops * _FLOPS_SHARE) + rounds * lengths.sampled * step
