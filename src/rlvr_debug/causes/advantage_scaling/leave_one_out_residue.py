"""Advantages over the spread of the group's other rewards, where that is above 0 as float32 has it.

NVIDIA-NeMo/RL PR 4161; row 1 of known bugs. sqrt(E[x^2] - E[x]^2) of equal rewards is not 0 but a residue
of about 1e-4, unless they are exact in binary: one reward apart from seven gets an advantage of thousands.
"""

from torch import Tensor

STAGE = "advantages"


def implementation(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    others = rewards.shape[1] - 1
    mean = (rewards.sum(1, keepdim=True) - rewards) / others
    centred = rewards - mean
    if scaling == "none":
        return centred
    squares = rewards.square()
    mean_square = (squares.sum(1, keepdim=True) - squares) / others
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    return (centred / std).where(std > 0, centred)
