"""Two tasks in one run: sums and descriptions.

Each task has its own reward, which is None for rows of the other task; a slow style judge runs asynchronously for
all rows. Rewards are normalized one by one before they are summed.
"""

import asyncio
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def text_of(completion):
    return completion[0]["content"]


def sum_reward(completions, task, answer, **kwargs):
    rewards = []
    for completion, kind, target in zip(completions, task, answer):
        if kind != "sum":
            rewards.append(None)
            continue
        text = text_of(completion)
        rewards.append(float(target in text) + sum(c.isdigit() for c in text) / max(len(text), 1))
    return rewards


def describe_reward(completions, task, **kwargs):
    rewards = []
    for completion, kind in zip(completions, task):
        if kind != "describe":
            rewards.append(None)
            continue
        text = text_of(completion)
        rewards.append(len(set(text)) / 20)
    return rewards


async def style_judge(completions, **kwargs):
    """Stands in for a remote judge; answers come back in any order."""

    async def judge(text):
        await asyncio.sleep(0.002 * (len(text) % 5))
        return 1.0 - sum(c in "<>{}\"/" for c in text) / max(len(text), 1) - 0.002 * len(text)

    return list(await asyncio.gather(*(judge(text_of(completion)) for completion in completions)))


def build_dataset(seed=2):
    rng = random.Random(seed)
    rows = []
    for thing in ["a lamp", "a gate", "the fog", "a coin", "the dawn", "a fence"]:
        rows.append({"prompt": [{"role": "user", "content": f"Describe {thing}."}], "task": "describe", "answer": ""})
        a, b = rng.randint(1, 50), rng.randint(1, 50)
        rows.append({"prompt": [{"role": "user", "content": f"Add {a} and {b}."}], "task": "sum",
                     "answer": str(a + b)})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[1.0, 0.7, 0.3],
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=3e-4,
        max_steps=3,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[sum_reward, describe_reward, style_judge],
        args=args,
        train_dataset=build_dataset(),
    )
    trainer.train()
