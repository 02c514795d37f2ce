"""A GRPO script of a user, with the tiny model or a larger one of random weights: three steps of 16 rollouts.

python benchmarks/check/sized.py [--size tiny] [--precision float32]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.check.case import TINY, plain, trainer_of, variety_reward
from rlvr_debug.models.architectures import PUBLISHED

SIZES = ("tiny", "0.5B")  # the shipped model, and Qwen2.5's architecture
_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        case = plain(str(TINY), args.precision, 0, folder).told(max_steps=_STEPS)
        case = replace(case, rewards=(variety_reward,))
        if args.size != "tiny":
            model = Qwen2ForCausalLM(Qwen2Config(**PUBLISHED[f"Qwen2.5-{args.size}"]))
            case = replace(case, model=model.bfloat16() if args.precision == "bf16" else model)
        trainer_of(case).train()


if __name__ == "__main__":
    main()
