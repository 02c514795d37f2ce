import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def remote_digits(completions, **kwargs):
    """A service that answers in any order; gather keeps ours."""

    async def ask(text):
        await asyncio.sleep(0.001 * (len(text) % 7))
        return sum(ch.isdigit() for ch in text) / (1 + len(text))

    return await asyncio.gather(*(ask(c[0]["content"]) for c in completions))


def pooled_judge(completions, answer, **kwargs):
    def score(pair):
        text, gold = pair
        time.sleep(0.001 * len(text))
        return 1.0 if gold in text else 0.1 * text.count("4")

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(score, ((c[0]["content"], a) for c, a in zip(completions, answer))))


def only_products(completions, kind, log_metric=None, **kwargs):
    """Applies to one kind of task; the other rows have no opinion."""
    scores = [len(c[0]["content"]) / 40 if k == "product" else None for c, k in zip(completions, kind)]
    if log_metric is not None:
        log_metric("products", sum(s is not None for s in scores) / len(scores))
    return scores


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 7, 2 + (3 * i) % 6
        thing = ("coins", "apples", "books")[i % 3]
        if i % 2:
            text, gold, kind = f"Hana has {a} boxes with {b} {thing} each. How many {thing} does Hana have?", a * b, "product"
        else:
            text, gold, kind = f"Hana has {a} {thing}. Finn has {b} {thing}. How many {thing} do they have?", a + b, "sum"
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": text},
            ],
            "answer": str(gold),
            "kind": kind,
        })
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=2e-4,
        reward_weights=[1.0, 0.7, -0.2],
        scale_rewards="batch",
        loss_type="dapo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    GRPOTrainer(MODEL, [remote_digits, pooled_judge, only_products], args, train_dataset=dataset()).train()
