"""Faults as users write them: a subclass of GRPOTrainer, or something done to the trainer before it trains.

Each is a function under `faulty`. All that the modules below hold are found.
"""

from __future__ import annotations

from benchmarks.check.faults import (
    advantages,
    batches,
    gradients,
    kept,
    logprobs,
    losses,
    masks,
    optimizers,
    processes,
    rewards,
    rows,
    sampling,
    tokens,
    weights,
)
from benchmarks.check.faults.fault import SEGMENTS, Fault

__all__ = ["FAULTS", "SEGMENTS", "Fault"]

# in the order of a step
_MODULES = (
    *(rows, sampling, tokens, masks, rewards, advantages, kept, batches, logprobs, losses),
    *(gradients, optimizers, weights, processes),
)

FAULTS: dict[str, Fault] = {
    value.name: value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, Fault)
}
