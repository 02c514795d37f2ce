"""Conversations as the shipped model had them, to be held again by any model at the same lengths.

Each reply is sampled, but ends where the recorded one did; then come the recorded ids of the tools.
So two sides, and models of any size, do the same work, whatever they say.

Axes: B conversations, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment, task_of
from rlvr_debug.models.base_model import load_weights, model_config
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.study.params import load_params

Found = TypeVar("Found")
PARAMS = load_params(ROOT / "params.yaml")
TINY = ROOT / "models" / "tiny"
# what a size changes about the tiny model's config; its own weights, or random ones
SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {},
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 512},
    "medium": {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


@dataclass(frozen=True)
class Conversation:
    """turns: each reply's length, its end-of-turn token included, and the ids that follow it."""

    prompt: list[int]
    turns: list[tuple[int, list[int]]]


def recorded(prompts: int, group: int, seed: int = 0) -> list[Conversation]:
    """As the tiny study's first step has them: the same rows' prompts, `group` rollouts of each."""
    torch.set_num_threads(1)
    chat = Chat(TINY)
    sampler = InProcessSampler(
        model_config(TINY), load_weights(TINY / "model.safetensors"), chat.ends
    )
    rows = list(task_of("musique").synthetic(PARAMS.data_settings("musique")))[:prompts]
    found = rollout(
        [row for row in rows for _ in range(group)],
        build_environment("musique", PARAMS.settings("musique")),
        chat,
        sampler,
        temperature=1.0,
        seed=seed,
    )
    conversations = []
    for each in found:
        ids = [segment.ids for segment in each.segments]
        replies, others = ids[1::2], [*ids[2::2], []]
        turns = [(len(reply), new) for reply, new in zip(replies, others, strict=True)]
        conversations.append(Conversation(ids[0], turns))
    return conversations


def equal(prompts: int, group: int, length: int) -> list[Conversation]:
    """One reply each, `length` tokens after a prompt of as many."""
    ids = torch.randint(256, (prompts, length), generator=torch.Generator().manual_seed(0))
    return [Conversation(prompt, [(length, [])]) for prompt in ids.tolist() for _ in range(group)]


def one_reply(conversation: Conversation) -> Conversation:
    """As long as all of its turns and tools together."""
    length = sum(reply + len(new) for reply, new in conversation.turns)
    return Conversation(conversation.prompt, [(length, [])])


def unpadded(conversations: list[Conversation]) -> int:
    """Tokens, prompts and tools included."""
    ends = [one_reply(each) for each in conversations]
    return sum(len(each.prompt) + each.turns[0][0] for each in ends)


# slots, their histories, their replies' lengths -> replies
Replies = Callable[[list[int], list[list[int]], list[int]], list[list[int]]]


def replay(
    conversations: list[Conversation], replies: Replies
) -> tuple[list[list[int]], list[list[bool]]]:
    """Ids and which of them were sampled, one list per conversation; all in step, turn by turn."""
    ids = [list(each.prompt) for each in conversations]
    sampled = [[False] * len(each.prompt) for each in conversations]
    for turn in range(max(len(each.turns) for each in conversations)):
        slots = [slot for slot, each in enumerate(conversations) if turn < len(each.turns)]
        turns = [conversations[slot].turns[turn] for slot in slots]
        found = replies(slots, [ids[slot] for slot in slots], [length for length, _ in turns])
        for slot, reply, (length, new) in zip(slots, found, turns, strict=True):
            assert len(reply) == length
            ids[slot] += reply + new
            sampled[slot] += [True] * length + [False] * len(new)
    return ids, sampled


# --- replies of a given length


def _end_where(logits: Tensor, last: Tensor, eos_id: int) -> Tensor:
    """Logits [B, V] that end a reply where `last` [B], and nowhere else."""
    logits[:, eos_id] = -torch.inf
    logits[last] = -torch.inf
    logits[last, eos_id] = 0.0
    return logits


class Forced(InProcessSampler):
    """Ours. `lengths`: of the replies to come."""

    lengths: Tensor

    def _choose(self, logits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        last = self.lengths == 1
        self.lengths = self.lengths[~last] - 1
        [eos_id] = self._ends
        return super()._choose(_end_where(logits, last, eos_id), *given)


def replayed(
    conversations: list[Conversation], sampler: Forced
) -> tuple[list[list[int]], list[list[bool]], list[list[float]]]:
    """By our sampler, which keeps nothing of it: as replay, and the log-probabilities of what was sampled."""
    logprobs: list[list[float]] = [[] for _ in conversations]

    def replies(slots: list[int], histories: list[list[int]], lengths: list[int]) -> Any:
        sampler.lengths = torch.tensor(lengths)
        samples = sampler.sample(
            [Request(slot, ids, None) for slot, ids in zip(slots, histories, strict=True)],
            temperature=1.0,
            max_new_tokens=max(lengths),
            seed=0,
        )
        for slot, sample in zip(slots, samples, strict=True):
            logprobs[slot].extend(sample.logprobs)
        return [sample.ids for sample in samples]

    ids, sampled = replay(conversations, replies)
    sampler.reset()
    return ids, sampled, logprobs


def forced_processor(width: int, lengths: list[int], eos_id: int) -> Callable[..., Tensor]:
    """For generate() on a batch of this width: its logits processor."""
    ends = width + torch.tensor(lengths) - 1
    return lambda ids, scores: _end_where(scores, ends == ids.shape[1], eos_id)


def padded(rows: list[list[Any]], side: str = "right", value: int = 0) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


# --- models, time, and processes


def build_model(size: str, folder: Path) -> tuple[Any, Any]:
    """A model of that size, in float32, and its reference; saved for who loads from a folder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    torch.manual_seed(0)
    shape = {**model_config(TINY), "layer_types": None, **SIZES[size]}
    config = Qwen2Config(**shape, attn_implementation="sdpa")
    models = [Qwen2ForCausalLM(config).eval() for _ in range(2)]
    weights = models[0].state_dict() if SIZES[size] else load_weights(TINY / "model.safetensors")
    for model in models:
        model.load_state_dict(weights)
    logging.disable_progress_bar()
    models[0].save_pretrained(folder)
    Chat(TINY).tokenizer.save_pretrained(folder)
    return models[0], models[1]


def interleaved(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of processor time, each side in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return seconds


def apart(measured: Callable[..., Found], *given: object) -> Found:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, *given).result()
