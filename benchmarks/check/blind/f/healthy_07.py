"""Rewards that log, one async, one that changes with the training progress."""
import asyncio
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def accuracy(completions, answer, log_extra=None, log_metric=None, **kwargs):
    guesses = [(re.findall(r"\d+", c[0]["content"]) or ["-"])[-1] for c in completions]
    scores = [float(g == str(a)) for g, a in zip(guesses, answer)]
    log_extra("guess", guesses)
    log_metric("solved", sum(scores) / len(scores))
    return scores


async def judge(completions, **kwargs):
    async def one(text):
        await asyncio.sleep(0.001)
        return 0.2 * ("There" in text) + 0.3 * ("####" in text) + 0.01 * (len(text) % 7)

    return list(await asyncio.gather(*(one(c[0]["content"]) for c in completions)))


def length_curriculum(completions, trainer_state, **kwargs):
    share = trainer_state.global_step / max(1, trainer_state.max_steps)
    return [-(0.2 + share) * len(c[0]["content"]) / 100 for c in completions]


dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Eve has {a} boxes with {b} shells each. How many shells does Eve have?"},
        ],
        "answer": a * b,
    }
    for a in (2, 3, 4, 5, 6) for b in (3, 4, 8)
])
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[accuracy, judge, length_curriculum],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
        per_device_train_batch_size=12, num_generations=4, max_completion_length=24, learning_rate=1e-5,
        scale_rewards="batch", mask_truncated_completions=True, log_completions=True, num_completions_to_print=1,
        logging_steps=3,
    ),
    train_dataset=dataset,
)
trainer.train()
