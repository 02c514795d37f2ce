"""Log-probabilities are computed with dropout: those of two passes differ, and both from the sampler's.

TRL PR 3234; row 31 of known bugs. A tenth of what the output layer reads is left out.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.grpo.logprobs import token_logprobs

STAGE = "logprobs"
_SHARE = 0.1


def implementation(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float,
    **options: Any,
) -> Tensor:
    def thinned(hidden: Tensor) -> Tensor:
        # another draw for each pass and each state of the model, and the same one for the same run
        seed = int(hidden.detach().double().abs().sum().item() * 1e6) % 2**31
        kept = torch.rand(hidden.shape, generator=torch.Generator().manual_seed(seed)) >= _SHARE
        logits: Tensor = model.lm_head(hidden * kept / (1 - _SHARE))
        return logits

    thin = SimpleNamespace(config=model.config, model=model.model, lm_head=thinned)
    return token_logprobs(thin, ids, attention_mask, wanted, temperature, **options)
