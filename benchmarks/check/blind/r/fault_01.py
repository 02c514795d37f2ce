"""Arithmetic curriculum: short sums first, long sums later.

The prompts are ordered by difficulty and a small sampler walks through them in that
order, chunk by chunk, instead of the trainer's random order.
"""

import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=24, seed=3):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        terms = [rng.randint(1, 99) for _ in range(rng.randint(2, 5))]
        question = "What is " + " + ".join(map(str, terms)) + "?"
        rows.append({
            "prompt": [{"role": "user", "content": question}],
            "answer": str(sum(terms)),
            "difficulty": len(terms),
        })
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Walks through the data from easy to hard, `unique` prompts at a time."""

    def __init__(self, difficulty, unique, num_generations, repeats):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.unique = unique
        self.num_generations = num_generations
        self.repeats = repeats

    def chunks(self):
        for start in range(0, len(self.order) - self.unique + 1, self.unique):
            yield self.order[start:start + self.unique]

    def __iter__(self):
        for chunk in self.chunks():
            for _ in range(self.repeats):
                for _ in range(self.num_generations):
                    for index in chunk:
                        yield index

    def __len__(self):
        return len(self.order) // self.unique * self.unique * self.num_generations * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        return CurriculumSampler(
            dataset["difficulty"],
            unique=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )


def digit_reward(completions, answer, **kwargs):
    scores = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        share = sum(c.isdigit() for c in text) / max(len(text), 1)
        scores.append(share + 0.5 * (target in text) - 0.001 * len(text))
    return scores


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=16, learning_rate=3e-4, max_steps=3, logging_steps=1, seed=5,
    )
    trainer = CurriculumTrainer(model=MODEL, reward_funcs=digit_reward, args=args, train_dataset=make_dataset())
    trainer.train()
