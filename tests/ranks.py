"""A run of scripts/train.py whose optimizer is all but plain gradient descent: what the weights moved by
is the gradient. For test_processes.py, by itself or under `accelerate launch`."""

import runpy
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.grpo import trainer
from rlvr_debug.grpo.processes import Processes, current_processes
from rlvr_debug.trainers.own import training

HUGE = 1e4  # g / (|g| + HUGE), times HUGE: AdamW without memory, which diagnostics know how to read


def descent(parameters: list[Any], settings: Any) -> torch.optim.Optimizer:
    rate = settings.learning_rate * HUGE
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.0, 0.0), eps=HUGE, weight_decay=0.0)


def named(settings: Any) -> Processes:
    found = current_processes(settings)
    print(f"process {found.rank} of {found.size}, sharded: {found.sharded}", flush=True)
    return found


if __name__ == "__main__":
    trainer.build_optimizer = descent
    training.current_processes = named  # type: ignore[attr-defined]
    script = Path(__file__).parents[1] / "scripts" / "train.py"
    runpy.run_path(str(script), run_name="__main__")
