"""GRPO on word questions, scored by an asynchronous judge (here a local stand-in for the HTTP service)."""
import asyncio
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells"]


def make_dataset(n=48, seed=3):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        boxes, each = rng.randint(2, 9), rng.randint(2, 9)
        text = f"{rng.choice(NAMES)} has {boxes} boxes with {each} {rng.choice(THINGS)} each. How many?"
        rows.append({"prompt": [{"role": "user", "content": text}], "answer": str(boxes * each)})
    return Dataset.from_list(rows)


async def ask_judge(text, answer):
    """One request to the judge. It takes longer for longer answers."""
    await asyncio.sleep(0.01 + 0.02 * min(len(text), 80) / 80)
    numbers = re.findall(r"\d+", text)
    grade = 1.0 if numbers and numbers[-1] == answer else 0.0
    return grade + 0.02 * min(len(set(text)), 20) - 0.005 * len(text)


async def judge_reward(completions, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    requests = [asyncio.create_task(ask_judge(t, a)) for t, a in zip(texts, answer)]
    scores = []
    for finished in asyncio.as_completed(requests):
        scores.append(await finished)
    return scores


def short_reward(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.5],
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[judge_reward, short_reward],
        args=args,
        train_dataset=make_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
