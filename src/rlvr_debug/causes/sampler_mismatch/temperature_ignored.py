"""The trainer's log-probabilities are those at temperature 1, whatever was sampled at.

TRL PR 3029, NeMo-RL PR 935 and open-instruct PR 1678; row 28 of known bugs.
"""

from typing import Any

from torch import Tensor

from rlvr_debug.grpo.logprobs import token_logprobs

STAGE = "logprobs"


def implementation(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float,
    **options: Any,
) -> Tensor:
    return token_logprobs(model, ids, attention_mask, wanted, 1.0, **options)
