"""Two tasks in one data set. Each reward speaks only for its own task and returns None elsewhere; one reward is async,
one is an object, one is a partial."""
import asyncio
import tempfile
from functools import partial
from pathlib import Path

from datasets import Dataset, concatenate_datasets
from trl import GRPOConfig, GRPOTrainer

MODEL = str(Path(__file__).resolve().with_name("tiny"))

multiply = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Gus has {a} boxes with {b} shells each. How many shells does Gus have?"},
            ],
            "task": "math",
            "target": str(a * b),
        }
        for a in range(13, 19)
        for b in range(21, 25)
    ]
)
free = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": f"Ben has {n} boxes with {m} pens each. How many pens does Ben have?"}],
         "task": "short", "target": ""}
        for n in range(11, 17)
        for m in range(3, 7)
    ]
)
dataset = concatenate_datasets([multiply, free]).shuffle(seed=3)


async def judge(completions, task, target, **kwargs):
    async def ask(text, t, want):
        if t != "math":
            return None
        await asyncio.sleep(0)  # here a request to a judge would go
        return float(want in text) + 0.5 * float("The answer is" in text) - 0.1 * float("cards" in text or "eggs" in text)

    return await asyncio.gather(*(ask(c[0]["content"], t, w) for c, t, w in zip(completions, task, target)))


class Brevity:
    def __init__(self, ideal):
        self.ideal = ideal
        self.__name__ = f"brevity_{ideal}"

    def __call__(self, prompts, completions, completion_ids, task, **kwargs):
        return [-abs(len(i) - self.ideal) / 24 if t == "short" else None for i, t in zip(completion_ids, task)]


def no_symbols(completions, symbols, **kwargs):
    return [-float(sum(c[0]["content"].count(s) for s in symbols) > 3) for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp("_multitask"),
        use_cpu=True,
        report_to="none",
        bf16=False,
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        reward_weights=[2.0, 1.0, 0.3],
        logging_steps=1,
        save_strategy="no",
    )
    GRPOTrainer(MODEL, [judge, Brevity(6), partial(no_symbols, symbols="*<")], args, dataset).train()
