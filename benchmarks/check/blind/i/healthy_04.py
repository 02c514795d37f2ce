import os
import random
import tempfile
from typing import Iterator

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer


class CurriculumSampler(Sampler[int]):
    """Easy prompts first; prompts of one difficulty in random order, each repeated for its group."""

    def __init__(self, levels, group, prompts, reuse, seed=0):
        self.levels, self.group, self.prompts, self.reuse = levels, group, prompts, reuse
        self.rng = random.Random(seed)

    def __iter__(self) -> Iterator[int]:
        order = sorted(range(len(self.levels)), key=lambda i: (self.levels[i], self.rng.random()))
        for start in range(0, len(order) - self.prompts + 1, self.prompts):
            block = order[start : start + self.prompts]
            for _ in range(self.reuse):
                for index in block:
                    for _ in range(self.group):
                        yield index

    def __len__(self) -> int:
        return len(self.levels) // self.prompts * self.prompts * self.group * self.reuse


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        return CurriculumSampler(
            dataset["level"],
            group=self.num_generations,
            prompts=self.args.generation_batch_size // self.num_generations,
            reuse=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def reward(completions, answer, level, **kwargs):
    return [
        sum(c[0]["content"].count(d) for d in set(a)) / (1 + lvl) - 0.01 * len(c[0]["content"]) for c, a, lvl in zip(completions, answer, level)
    ]


rng = random.Random(5)
rows = []
for i in range(32):
    level = i % 3
    a, b = rng.randrange(10**level, 10 ** (level + 1)), rng.randrange(1, 10)
    rows.append({"prompt": [{"role": "user", "content": f"{a}+{b}"}], "answer": str(a + b), "level": level})

trainer = CurriculumTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=3,
        num_generations=6, max_completion_length=20, learning_rate=1e-4, max_steps=5, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    ),
)
trainer.train()
