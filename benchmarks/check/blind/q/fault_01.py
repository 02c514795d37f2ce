"""GRPO with an easy-to-hard curriculum over word problems."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]


def make_rows(n=32):
    rows = []
    for i in range(n):
        a, b = 2 + (i * 7) % 18, 2 + (i * 5) % 8
        who, what = NAMES[i % 8], THINGS[(i * 3) % 8]
        question = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b),
                "difficulty": a * b,
            }
        )
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Walks the data from easy to hard, `prompts_per_batch` prompts at a time."""

    def __init__(self, data, prompts_per_batch, num_generations, repeats):
        self.order = sorted(range(len(data)), key=lambda i: data[i]["difficulty"])
        self.prompts_per_batch = prompts_per_batch
        self.num_generations = num_generations
        self.repeats = repeats

    def __iter__(self):
        for start in range(0, len(self.order), self.prompts_per_batch):
            block = self.order[start : start + self.prompts_per_batch]
            for _ in range(self.repeats):
                yield from block * self.num_generations

    def __len__(self):
        return len(self.order) * self.num_generations * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset,
            self.args.generation_batch_size // self.num_generations,
            self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
        )


def correctness(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        score = 1.0 if numbers and numbers[-1] == gold else 0.0
        scores.append(score + 0.05 * len(set(numbers)) - 0.002 * len(text))
    return scores


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
)
trainer = CurriculumTrainer(model=MODEL, reward_funcs=correctness, args=args, train_dataset=make_rows())
trainer.train()
