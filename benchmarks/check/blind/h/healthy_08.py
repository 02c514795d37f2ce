import asyncio
import functools
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


async def judge(completions, kind, **kwargs):
    """Only for the 'word' rows."""

    async def one(text, k):
        await asyncio.sleep(0.001 * (len(text) % 5))
        return len(set(text)) / 8 if k == "word" else None

    return await asyncio.gather(*(one(t, k) for t, k in zip(completions, kind)))


def arithmetic(completions, kind, log_metric=None, **kwargs):
    values = [sum(c.isdigit() for c in t) / 12 if k == "sum" else None for t, k in zip(completions, kind)]
    if log_metric is not None:
        log_metric("share_of_sums", sum(v is not None for v in values) / len(values))
    return values


def length(completion_ids, target=10, **kwargs):
    return [-abs(len(ids) - target) / target for ids in completion_ids]


near_ten = functools.partial(length, target=10)

ds = Dataset.from_list(
    [{"prompt": f"{i}+{i + 1}=", "kind": "sum"} for i in range(12)]
    + [{"prompt": f"Spell {i}: ", "kind": "word"} for i in range(12)]
)

trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=[judge, arithmetic, near_ten],
    train_dataset=ds,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        reward_weights=[1.0, 2.0, 0.5], multi_objective_aggregation="normalize_then_sum",
        per_device_train_batch_size=12, num_generations=4, max_completion_length=14,
        learning_rate=1e-4, max_steps=5, logging_steps=1, weight_decay=0.05, adam_beta2=0.95,
    ),
)
trainer.train()
