"""The ratio is clipped whatever the advantage's sign: gepa-dapo-grn 0.4.0, gepa_dapo_grn/dapo_core.py line 137."""

from torch import Tensor

STAGE = "clipped_objective"


def implementation(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    return ratio.clamp(1 - low, 1 + high) * advantages[:, None]
