"""Two tasks in one run. Each reward says None for the rows of the other task; an async judge scores all."""
import asyncio
import os
import random
import re
import tempfile
from functools import partial

from datasets import Dataset, concatenate_datasets
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


async def judge(text):
    await asyncio.sleep(0.001 * (1 + len(text) % 7))
    return len(set(text)) / (1 + len(text))


async def judge_reward(completions, **kwargs):
    return await asyncio.gather(*[judge(c[-1]["content"]) for c in completions])


def sum_reward(completions, task, target, scale=1.0, **kwargs):
    rewards = []
    for completion, kind, value in zip(completions, task, target):
        if kind != "sum":
            rewards.append(None)
            continue
        numbers = [int(n[:7]) for n in re.findall(r"\d+", completion[-1]["content"])]
        rewards.append(scale * max((1.0 / (1 + abs(n - value)) for n in numbers), default=0.0))
    return rewards


class LargerReward:
    """1 for the larger number, 0.2 for the smaller one."""

    __name__ = "larger"

    def __call__(self, completions, task, pair, **kwargs):
        rewards = []
        for completion, kind, (a, b) in zip(completions, task, pair):
            text = completion[-1]["content"]
            if kind != "larger":
                rewards.append(None)
            elif str(max(a, b)) in text:
                rewards.append(1.0)
            else:
                rewards.append(0.2 * (str(min(a, b)) in text) - 0.01 * len(text))
        return rewards


def make(kind, question, n, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b = rng.sample(range(2, 49), 2)
        prompt = [{"role": "user", "content": question.format(a, b)}]
        rows.append({"prompt": prompt, "task": kind, "target": a + b, "pair": [a, b]})
    return Dataset.from_list(rows)


dataset = concatenate_datasets(
    [make("sum", "What is {} + {}?", 30, 0), make("larger", "Which is larger, {} or {}?", 30, 1)]
).shuffle(seed=5)

scaled_sum = partial(sum_reward, scale=2.0)
scaled_sum.__name__ = "sum"
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-5,
    reward_weights=[1.0, 1.0, 0.25],
    multi_objective_aggregation="normalize_then_sum",
    loss_type="bnpo",
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[scaled_sum, LargerReward(), judge_reward],
    args=args,
    train_dataset=dataset,
)
trainer.train()
