"""Many rewards: async, None where a reward does not apply, a weight of zero (only logged), a growing length penalty."""
import asyncio
import functools
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def remote(completions, kind, **kwargs):
    """Only for poems; gather keeps the order."""

    async def one(text, k):
        await asyncio.sleep(0.001 * (len(text) % 5))
        return None if k != "poem" else len(set(text)) / 20

    return await asyncio.gather(*(one(c[0]["content"], k) for c, k in zip(completions, kind)))


class Budget:
    """Penalty per token that ramps up with the training step."""

    __name__ = "budget"

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, completion_ids, trainer_state, **kwargs):
        weight = self.slope * (1 + trainer_state.global_step)
        return [-weight * len(set(ids)) for ids in completion_ids]


def shouting(completions, log_metric, log_extra, **kwargs):
    shares = [sum(ch.isupper() for ch in c[0]["content"]) / max(len(c[0]["content"]), 1) for c in completions]
    log_metric("shouting", sum(shares) / len(shares))
    log_extra("share", shares)
    return shares


def symbol_count(completions, symbols, scale=1.0, **kwargs):
    return [scale * sum(ch in symbols for ch in c[0]["content"]) for c in completions]


def scored_for(kind_wanted, completions, kind, **kwargs):
    return [
        float(sum(map(str.isalpha, c[0]["content"]))) / 100 if k == kind_wanted else None for c, k in zip(completions, kind)
    ]


rows = []
for k in range(12):
    kind = "poem" if k % 2 else "prose"
    rows.append({"prompt": [{"role": "user", "content": f"A {kind} about {k}"}], "kind": kind, "symbols": "*3<"})


def symbols(completions, symbols, **kwargs):
    return symbol_count(completions, symbols[0], scale=0.5)


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=[remote, Budget(0.004), shouting, symbols, functools.partial(scored_for, "prose")],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-4,
        reward_weights=[1.0, 1.0, 0.0, -0.5, 0.1],
        scale_rewards="batch",
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
