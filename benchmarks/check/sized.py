"""A GRPO script of a user with a model of random weights: three steps of 16 rollouts.

python benchmarks/check/sized.py [--size tiny]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from benchmarks.check.case import TINY, plain, rows, variety_reward

# of transformers' Qwen2Config; tiny: the shipped model's own
SIZES = {
    "tiny": {},
    "0.5B": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        case = plain(str(TINY), "float32", 0, folder)
        model = (
            Qwen2ForCausalLM(Qwen2Config(**SIZES[args.size])) if SIZES[args.size] else case.model
        )
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
