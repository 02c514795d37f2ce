"""A GRPO script of a user, with the tiny model or a larger one of random weights: three steps of 16 rollouts.

python benchmarks/check/sized.py [--size tiny] [--precision float32]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from benchmarks.check.case import TINY, plain, rows, variety_reward
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
        case = plain(str(TINY), args.precision, 0, folder)
        model = case.model
        if args.size != "tiny":
            model = Qwen2ForCausalLM(Qwen2Config(**PUBLISHED[f"Qwen2.5-{args.size}"]))
            if args.precision == "bf16":
                model = model.bfloat16()
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[variety_reward],
            args=GRPOConfig(**{**case.config, "max_steps": _STEPS}),
            train_dataset=Dataset.from_list([dict(row) for row in rows(0)]),
            processing_class=case.tokenizer,
        )
        trainer.train()


if __name__ == "__main__":
    main()
