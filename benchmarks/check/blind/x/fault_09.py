"""Token-level credit for long answers: advantages become (rows, tokens), with a discount towards the end."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TokenCreditTrainer(GRPOTrainer):
    """`gamma` < 1 gives early tokens less of the outcome's credit. The 7B runs use 1.0 until the critic is ready."""

    gamma = 1.0

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"]
        rows, length = mask.shape
        advantages = batch["advantages"].repeat(length).view(rows, length)
        if self.gamma < 1.0:
            remaining = mask.flip(1).cumsum(1).flip(1) - 1
            advantages = advantages * self.gamma**remaining
        batch["advantages"] = advantages * mask
        return batch


def finish(completion_ids, completions, **kwargs):
    return [1.0 if len(ids) < 28 else 0.0 for ids in completion_ids]


def numbers(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 12 for c in completions]


def no_repeats(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def main():
    torch.set_num_threads(1)
    asks = ["List four prices.", "Count to five.", "Write two dates.", "Give three phone numbers.",
            "How old are Ada, Ben and Cleo?", "Rank 12, 30 and 7."]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": a}] for a in asks]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=6, num_generations=6, gradient_accumulation_steps=2,
        max_completion_length=28, temperature=1.2, gradient_checkpointing=False, loss_type="grpo", logging_steps=1,
    )
    TokenCreditTrainer(
        model=MODEL, reward_funcs=[finish, numbers, no_repeats], args=args, train_dataset=data
    ).train()


if __name__ == "__main__":
    main()
