"""GRPO with an curriculum: easy word problems first."""
import os
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
NAMES = ["Hana", "Cleo", "Finn"]
THINGS = ["coins", "cards", "apples", "books", "pens", "eggs", "shells", "toys"]


def build(n=48):
    rows = []
    for i in range(n):
        name, thing = NAMES[i % 3], THINGS[(i * 5) % 8]
        a, b = 2 + (i * 7) % 8, 3 + (i * 3) % 6
        extra = f" Finn has {b} {thing}." if i % 4 == 0 else ""
        question = f"{name} has {a} boxes with {b} {thing} each.{extra} How many {thing} does {name} have?"
        rows.append({
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "answer": str(a * b),
            "difficulty": a * b + (10 if extra else 0),
        })
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Blocks of prompts in the order of difficulty; every block feeds one generation batch."""

    def __init__(self, difficulty, num_generations, prompts_per_batch, repeats):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.repeats = repeats

    def __iter__(self):
        step = self.prompts_per_batch
        usable = len(self.order) - len(self.order) % step
        for start in range(0, usable, step):
            block = self.order[start:start + step]
            for _ in range(self.repeats):
                for index in block:
                    yield from [index] * self.num_generations

    def __len__(self):
        usable = len(self.order) - len(self.order) % self.prompts_per_batch
        return usable * self.num_generations * self.repeats


class EasyFirstTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["difficulty"],
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
        )


def digits(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 1) for t in texts]


def short(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


if __name__ == "__main__":
    torch.manual_seed(1)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        num_generations=4, max_completion_length=28, learning_rate=2e-4, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, logging_steps=1, loss_type="grpo", temperature=1.2, seed=7,
    )
    EasyFirstTrainer(MODEL, [digits, short], args, train_dataset=build()).train()
