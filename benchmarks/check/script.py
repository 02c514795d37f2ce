"""A GRPO script of a user, on the tiny model: `python benchmarks/check/script.py [--setting NAME] [--fault NAME]`.

A setting is healthy, a fault is not; several settings are joined by `+`. It prints a line for each step's loss and reward,
and a digest of the weights at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from typing import Any

import torch

from benchmarks.check.case import TINY, plain, train
from benchmarks.check.faults import FAULTS
from benchmarks.check.settings import apply_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--setting", default="")
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the model; a temporary one otherwise")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        case = plain(args.model, args.precision, args.seed, args.out or folder)
        fault = FAULTS[args.fault] if args.fault else None
        case = apply_settings(args.setting or (fault.setting if fault else ""), case)
        trainer = train(fault.planted(case) if fault else case)
        told(trainer)


def told(trainer: Any) -> None:
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"loss {row['loss']:.4f} reward {row.get('reward', float('nan')):.4f}")
    digest = hashlib.sha256()
    for _, weight in sorted(trainer.model.state_dict().items()):
        digest.update(weight.detach().float().numpy().tobytes())
    print(f"trained {trainer.state.global_step} steps, weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
