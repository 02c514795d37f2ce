"""The frequencies of rotary positions (Su et al., arXiv 2104.09864), scaled as Llama 3.1 scales them or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.models.architectures import rope_of


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
