"""One run over two domains: math rows and code rows have rewards of their own, a style judge scores both."""

import asyncio
import functools
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
POOL = ThreadPoolExecutor(max_workers=4)


@functools.lru_cache(maxsize=4096)
def execute(program, target):
    time.sleep(0.0005 * len(program))
    return (program.count(target) + 0.1 * sum(ch in "()=:" for ch in program)) / (1 + len(program) / 50)


def code_reward(completions, domain, target, **kwargs):
    def one(item):
        completion, name, goal = item
        return execute(completion[0]["content"], goal) if name == "code" else None

    return list(POOL.map(one, zip(completions, domain, target)))


def math_reward(completions, domain, target, **kwargs):
    scores = [None] * len(completions)
    for i, (completion, name, goal) in enumerate(zip(completions, domain, target)):
        if name == "math":
            text = completion[0]["content"]
            scores[i] = text.count(goal) + sum(ch.isdigit() for ch in text) / (len(text) + 1)
    return scores


async def style_judge(completions, **kwargs):
    async def judge(text):
        await asyncio.sleep(0.001 * (len(text) % 7))
        return len(set(text)) / (len(text) + 2)

    return list(await asyncio.gather(*(judge(c[0]["content"]) for c in completions)))


def main():
    rows = []
    for i, (a, b) in enumerate([(3, 12), (8, 11), (6, 14), (9, 13), (2, 17), (7, 15)]):
        rows.append({"prompt": [{"role": "user", "content": f"Compute {a} times {b}."}], "domain": "math", "target": str(a * b)})
        rows.append({"prompt": [{"role": "user", "content": f"Code that prints {a}."}], "domain": "code", "target": str(a)})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=24, temperature=1.2, reward_weights=[1.0, 0.7, 0.25],
        multi_objective_aggregation="normalize_then_sum", gradient_checkpointing=False, logging_steps=1,
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=[code_reward, math_reward, style_judge], args=args,
        train_dataset=Dataset.from_list(rows),
    ).train()


if __name__ == "__main__":
    main()
