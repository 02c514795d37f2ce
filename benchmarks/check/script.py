"""A GRPO script of a user, on the tiny model: `python benchmarks/check/script.py [--setting NAME] [--fault NAME]`.

A setting is healthy, a fault is not; several settings are joined by `+`. It prints a line for each step's loss and reward,
and a digest of the weights at the end. With --size it takes three steps of 16 rollouts, for their cost.
"""

import argparse
import hashlib
import tempfile
from dataclasses import replace

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.check.case import TINY, plain, train, variety_reward
from benchmarks.check.faults import FAULTS
from benchmarks.check.settings import apply_settings
from rlvr_debug.models.architectures import PUBLISHED

SIZES = ("tiny", "0.5B")
_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--setting", default="")
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the model; a temporary one otherwise")
    parser.add_argument("--size", choices=SIZES, help="0.5B: Qwen2.5's, with random weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        case = plain(args.model, args.precision, args.seed, args.out or folder)
        fault = FAULTS[args.fault] if args.fault else None
        if args.size:
            case = replace(case.told(max_steps=_STEPS), rewards=(variety_reward,))
        if args.size and args.size != SIZES[0]:
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(Qwen2Config(**PUBLISHED[f"Qwen2.5-{args.size}"]))
            case = replace(case, model=model.bfloat16() if args.precision == "bf16" else model)
        case = apply_settings(args.setting or (fault.setting if fault else ""), case)
        trainer = train(fault.planted(case) if fault else case)
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"loss {row['loss']:.4f} reward {row.get('reward', float('nan')):.4f}")
    digest = hashlib.sha256()
    for _, weight in sorted(trainer.model.state_dict().items()):
        digest.update(weight.detach().float().numpy().tobytes())
    print(f"trained {trainer.state.global_step} steps, weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
