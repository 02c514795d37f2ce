"""Two tasks in a stream.

The data is iterable. Each reward function scores the rows of its task and gives None for the others; one is
asynchronous, and one is a cost with a negative weight. Each is normalised for itself before they are summed.
"""

import asyncio
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def counting(completions, task, **kwargs):
    async def one(text, kind):
        await asyncio.sleep(0.001 * (len(text) % 5))
        return sum(ch.isdigit() for ch in text) + 0.1 * len(text) if kind == "count" else None

    return await asyncio.gather(*(one(c[0]["content"], kind) for c, kind in zip(completions, task)))


def writing(completions, task, **kwargs):
    return [
        sum(ch.isalpha() for ch in c[0]["content"]) / 30 if kind == "write" else None
        for c, kind in zip(completions, task)
    ]


def cost(completion_ids, **kwargs):
    return [len(ids) / 20 for ids in completion_ids]


rows = []
for n in range(2, 34):
    kind = "count" if n % 2 else "write"
    ask = f"Count from {n} on." if kind == "count" else f"Describe {n} towns by the sea: größe, prix, 北."
    rows.append({"prompt": [{"role": "user", "content": ask}], "task": kind})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=16, num_generations=4, max_completion_length=20, learning_rate=5e-5,
    multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 1.0, -0.4], loss_type="bnpo",
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=TINY, reward_funcs=[counting, writing, cost], args=args,
    train_dataset=Dataset.from_list(rows).to_iterable_dataset(),
)
trainer.train()
