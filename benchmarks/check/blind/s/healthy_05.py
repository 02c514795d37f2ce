"""Two tasks in one run: JSON records and counting.

Each task has its own reward, which returns None for the rows of the other task; a third one applies to all rows. The
JSON reward is a coroutine because it will call a service. Rewards are normalised one by one, then summed.
"""

import asyncio
import json
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def json_reward(completions, task, **kwargs):
    async def score(text):
        await asyncio.sleep(0)
        try:
            json.loads(text)
            return 1.0
        except ValueError:
            return 0.1 * (text[:1] in '{["') + 0.02 * len(set(text))

    scored = await asyncio.gather(*(score(c[0]["content"]) for c in completions))
    return [s if t == "json" else None for s, t in zip(scored, task)]


def counting_reward(completions, task, upto, **kwargs):
    rewards = []
    for completion, t, n in zip(completions, task, upto):
        if t != "count":
            rewards.append(None)
            continue
        text = completion[0]["content"]
        hits = sum(str(i) in text for i in range(1, n + 1))
        rewards.append(hits / n)
    return rewards


def length_reward(completion_ids, **kwargs):
    return [-len(ids) / 16 for ids in completion_ids]


def main():
    rows = []
    for name in ("user", "order", "event", "price"):
        rows.append({"prompt": [{"role": "user", "content": f"A JSON {name}"}], "task": "json", "upto": 0})
    for n in (3, 5, 7, 9):
        rows.append({"prompt": [{"role": "user", "content": f"Count to {n}"}], "task": "count", "upto": n})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            reward_weights=[1.0, 2.0, 0.25],
            multi_objective_aggregation="normalize_then_sum",
            loss_type="bnpo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL,
            reward_funcs=[json_reward, counting_reward, length_reward],
            args=args,
            train_dataset=Dataset.from_list(rows),
        )
        trainer.train()


if __name__ == "__main__":
    main()
