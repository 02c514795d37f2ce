"""GRPO on the short-arithmetic mix, easy prompts first (curriculum by expected difficulty)."""

import os
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

PROBLEMS = [
    ("What is 3 + 4?", 1), ("What is 12 - 5?", 1), ("What is 6 * 7?", 2), ("What is 81 / 9?", 2),
    ("Ada has 3 boxes with 12 pens each. How many pens?", 3), ("Ben has 20 cards and gives away 7. How many are left?", 3),
    ("Cleo buys 4 books for 11 coins each. What does she pay?", 4), ("Each of 5 shells costs 13 coins. What do they cost?", 4),
    ("Dev has 2 boxes with 14 eggs and breaks 3. How many are whole?", 5), ("Eve has 30 toys in 5 boxes. How many in each?", 5),
    ("Finn has 17 stamps, twice as many as Gus minus one. How many has Gus?", 6), ("Hana counts 9 apples three times. How many?", 6),
]


class CurriculumSampler(Sampler):
    """Batches of prompts in order of difficulty, ties broken at random.

    A chunk of `prompts_per_batch` prompts is served `num_generations` times, and the whole of it again
    `repeat` times, so that the trainer can reuse a generation.
    """

    def __init__(self, dataset, num_generations, prompts_per_batch, repeat=1, seed=0):
        self.levels = dataset["level"]
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.repeat = repeat
        self.generator = torch.Generator().manual_seed(seed)

    def _order(self):
        noise = torch.rand(len(self.levels), generator=self.generator).tolist()
        return sorted(range(len(self.levels)), key=lambda i: (self.levels[i], noise[i]))

    def __iter__(self):
        order = self._order()
        size = self.prompts_per_batch
        for start in range(0, len(order) - size + 1, size):
            chunk = order[start : start + size]
            for _ in range(self.repeat):
                for _ in range(self.num_generations):
                    yield from chunk

    def __len__(self):
        return len(self.levels) // self.prompts_per_batch * self.prompts_per_batch * self.num_generations * self.repeat


class CurriculumGRPOTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return CurriculumSampler(
            dataset if dataset is not None else self.train_dataset,
            num_generations=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            repeat=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def brevity(completions, **kwargs):
    return [-len(c[0]["content"]) / 40 for c in completions]


def digits(completions, level, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 1) * n for t, n in zip(texts, level)]


def main():
    rows = [{"prompt": [{"role": "user", "content": q}], "level": n} for q, n in PROBLEMS]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, learning_rate=5e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=16, num_generations=4, max_completion_length=24,
        gradient_checkpointing=False, temperature=1.0, loss_type="dapo", logging_steps=1, seed=7,
    )
    trainer = CurriculumGRPOTrainer(
        model=MODEL, reward_funcs=[brevity, digits], args=args, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()


if __name__ == "__main__":
    main()
