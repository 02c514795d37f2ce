"""Streaming prompts with system messages and narrow sampling.

The prompts come from a generator and are never held in memory. Completions that hit the limit are masked, and the
loss uses the half of the tokens where the policy is least certain.
"""

import os
import tempfile

from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

STYLES = ["Answer in one word.", "Answer with a number.", "Answer politely.", "Be brief."]


def stream():
    number = 0
    while number < 400:
        style = STYLES[number % len(STYLES)]
        a, b = 3 + number * 7 % 40, 2 + number * 11 % 30
        yield {
            "prompt": [
                {"role": "system", "content": style},
                {"role": "user", "content": f"How much is {a} and {b}?"},
            ],
            "answer": str(a + b),
            "brief": number % len(STYLES) in (0, 3),
        }
        number += 1


def content_reward(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        rewards.append(float(target in text) + len(set(text) & set(target)) / len(set(target)))
    return rewards


def brevity_reward(completions, brief, **kwargs):
    return [
        -len(completion[0]["content"]) / (60 if wanted else 120)
        for completion, wanted in zip(completions, brief)
    ]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="stream-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        temperature=1.2,
        top_p=0.95,
        top_k=60,
        min_p=0.01,
        repetition_penalty=1.05,
        mask_truncated_completions=True,
        top_entropy_quantile=0.5,
        scale_rewards="batch",
        loss_type="dr_grpo",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=5e-4,
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[content_reward, brevity_reward],
        args=args,
        train_dataset=IterableDataset.from_generator(stream),
    )
    trainer.train()


if __name__ == "__main__":
    main()
