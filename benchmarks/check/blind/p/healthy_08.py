"""GRPO with async graders that answer out of order, and a memo of grades."""
import asyncio
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Grader:
    __name__ = "graded"

    def __init__(self, workers=12):
        self.workers = workers
        self.memo = {}

    async def grade(self, slots, index, key):
        if key not in self.memo:
            text, target = key
            async with slots:
                await asyncio.sleep(0.001 * (len(text) % 13))
                self.memo[key] = text.count(target) / 3 + len(text) / 90
        return index, self.memo[key]

    async def run(self, keys):
        slots = asyncio.Semaphore(self.workers)
        grades = [0.0] * len(keys)
        for finished in asyncio.as_completed([self.grade(slots, i, k) for i, k in enumerate(keys)]):
            index, value = await finished
            grades[index] = value
        return grades

    def __call__(self, completions, target, **kwargs):
        keys = [(c[0]["content"], t) for c, t in zip(completions, target, strict=True)]
        return asyncio.run(self.run(keys))


pairs = [("a", "cat"), ("e", "tree"), ("o", "boot"), ("r", "road"), ("u", "lump"), ("l", "lily"), ("t", "tent"),
         ("i", "mint")]
dataset = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"Use the letter {t} as in {w}."}] for t, w in pairs],
        "target": [t for t, _ in pairs],
    }
)
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=24,
    temperature=1.2,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
GRPOTrainer(model=MODEL, reward_funcs=Grader(), args=config, train_dataset=dataset).train()
