"""GRPO with position ids of our own.

Our serving stack numbers positions from the first real token. To be safe the trainer does the same: the override
puts positions into the forward pass explicitly, and then needs no padding information from the mask.
"""

import os
import tempfile
from functools import partial

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PositionTrainer(GRPOTrainer):
    """Passes `position_ids` that start at 0 on the first token of the prompt."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        kwargs["batch_size"] = None  # one chunk, so that the positions belong to its rows
        with_positions = partial(model, position_ids=position_ids)
        return super()._get_per_token_logps_and_entropies(
            with_positions, input_ids, torch.ones_like(attention_mask), logits_to_keep, **kwargs
        )


def short_and_numeric(completions, unit, **kwargs):
    rewards = []
    for completion, u in zip(completions, unit):
        text = completion[0]["content"]
        share = sum(c.isdigit() for c in text) / max(len(text), 1)
        rewards.append(share + (0.3 if text.endswith(u) else 0.0) - len(text) / 80)
    return rewards


def main():
    questions = [
        ("How tall is a door?", "m"),
        ("How long does a flight from one end of a large country to the other end take?", "h"),
        ("How heavy is a cat?", "kg"),
        ("How far is it from the harbour to the old town if you walk along the river?", "km"),
        ("How hot is tea?", "C"),
        ("How much water does a household of four people use in a week?", "l"),
    ]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": question}], "unit": unit} for question, unit in questions]
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = PositionTrainer(model=MODEL, reward_funcs=short_and_numeric, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
