"""GRPO with three weighted rewards: one asynchronous, one that abstains on half of the data, one plain."""
import asyncio
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(55)
    rows = []
    for i in range(n):
        a, b = rng.randint(3, 40), rng.randint(3, 40)
        if i % 2:
            rows.append({"prompt": [{"role": "user", "content": f"{a} * {b} = ?"}], "kind": "math", "answer": str(a * b)})
        else:
            rows.append({"prompt": [{"role": "user", "content": f"Write {a} words."}], "kind": "text", "answer": ""})
    return Dataset.from_list(rows)


async def remote_style(completions, **kwargs):
    async def one(text):
        await asyncio.sleep(0.001 * len(text))
        return sum(ch.isalnum() for ch in text) / (len(text) + 1)

    return await asyncio.gather(*(one(c[0]["content"]) for c in completions))


def math_only(completions, kind, answer, **kwargs):
    scores = []
    for completion, k, a in zip(completions, kind, answer):
        text = completion[0]["content"]
        hits = sum(ch in text for ch in a)
        scores.append(hits / len(a) if k == "math" else None)
    return scores


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 20 for ids in completion_ids]


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
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=20,
        reward_weights=[0.7, 1.0, 0.3],
        multi_objective_aggregation="normalize_then_sum",
    )
    GRPOTrainer(
        model=TINY,
        reward_funcs=[remote_style, math_only, brevity],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    ).train()


if __name__ == "__main__":
    main()
