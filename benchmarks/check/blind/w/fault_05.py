"""GRPO where some rewards are missing (the grader may abstain), with NaN statistics computed in float64."""
import os
import random
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_module
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def nanstd64(tensor, dim=None, keepdim=False):
    """NaN-aware standard deviation. Accumulates in float64: our rewards can sit on a large constant offset."""
    values = tensor.double()
    if dim is None:
        center = torch.nanmean(values)
        return torch.nanmean((values - center) ** 2).sqrt().to(tensor.dtype)
    center = torch.nanmean(values, dim=dim, keepdim=True)
    variance = torch.nanmean((values - center) ** 2, dim=dim, keepdim=keepdim)
    return variance.sqrt().to(tensor.dtype)


grpo_module.nanstd = nanstd64


def make_dataset(n=40):
    rng = random.Random(21)
    kinds = ["city", "tool", "fruit", "animal", "river"]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"Name {rng.randint(2, 9)} words for a {rng.choice(kinds)} no. {i}."}],
                "budget": rng.randint(8, 20),
            }
            for i in range(n)
        ]
    )


def offset_length(completion_ids, budget, **kwargs):
    """Points on the grader's own scale, which starts at 1000."""
    return [1000.0 - abs(len(ids) - b) for ids, b in zip(completion_ids, budget)]


def digits_or_abstain(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        scores.append(sum(c.isdigit() for c in text) * 0.25 if text.strip() else None)
    return scores


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=8,
        steps_per_generation=2,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        loss_type="dr_grpo",
        scale_rewards="group",
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=[offset_length, digits_or_abstain],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
