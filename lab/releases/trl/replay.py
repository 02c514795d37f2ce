"""Puts rollouts that our sampler made in the place of a model's `generate`, as a release of TRL calls it.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.errors import InputError
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["TrlReplay"]


class TrlReplay:
    """What was sampled from each prompt, one rollout after another.

    order: which rollouts the last call was answered with; real, [B, T]: what of its answer is no padding.
    """

    def __init__(self, rollouts: list[Rollout]) -> None:
        self._rollouts = rollouts
        waiting = defaultdict(list)
        for i, each in enumerate(rollouts):
            waiting[tuple(each.segments[0].ids)].append(i)
        self._waiting = {prompt: cycle(found) for prompt, found in waiting.items()}
        self.order: list[int] = []
        self.real = torch.empty(0)

    def __call__(
        self,
        input_ids: Tensor,
        *_: Any,
        attention_mask: Tensor,
        generation_config: Any,
        **__: Any,
    ) -> Tensor:
        """Return prompts and replies, [B, T]. Raise InputError for a prompt that was not sampled from."""
        times = generation_config.num_return_sequences or 1
        prompts, seen = (x.repeat_interleave(times, 0) for x in (input_ids, attention_mask.bool()))
        self.order = [self._next(ids[real]) for ids, real in zip(prompts, seen, strict=True)]
        replies = [torch.tensor(self._rollouts[i].segments[1].ids) for i in self.order]
        completions, written = (
            pad_sequence(rows, batch_first=True, padding_value=padding)
            for rows, padding in (
                (replies, generation_config.pad_token_id),
                ([torch.ones_like(reply).bool() for reply in replies], False),
            )
        )
        self.real = torch.cat([seen, written], 1)
        return torch.cat([prompts, completions], 1)

    def _next(self, prompt: Tensor) -> int:
        waiting = self._waiting.get(tuple(prompt.tolist()))
        if waiting is None:
            raise InputError("the release asks for another prompt than was sampled from")
        return next(waiting)
