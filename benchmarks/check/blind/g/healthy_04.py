import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Curriculum(Sampler):
    """Easy prompts first; each prompt fills a group, each block is seen again for all steps that share it."""

    def __init__(self, dataset, group, block, again, seed):
        self.order = sorted(range(len(dataset)), key=lambda i: dataset[i]["difficulty"])
        self.group, self.block, self.again = group, block, again
        self.rng = random.Random(seed)

    def __iter__(self):
        blocks = [self.order[i : i + self.block] for i in range(0, len(self.order), self.block)]
        for block in blocks:
            if len(block) < self.block:
                continue
            block = self.rng.sample(block, len(block))
            rows = [i for i in block for _ in range(self.group)]
            for _ in range(self.again):
                yield from rows

    def __len__(self):
        return len(self.order) // self.block * self.block * self.group * self.again


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return Curriculum(
            self.train_dataset if dataset is None else dataset,
            group=self.num_generations,
            block=self.args.generation_batch_size // self.num_generations,
            again=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def digits(completions, answer, **kwargs):
    return [0.5 * (a in c) + sum(ch.isdigit() for ch in c) / 40 for c, a in zip(completions, answer)]


rows = [
    {"prompt": f"{a} + {b} = ", "answer": str(a + b), "difficulty": a + b} for a in range(1, 30, 5) for b in (2, 9, 14, 31)
]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=5e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=4,
    max_completion_length=12,
)
CurriculumTrainer(model=MODEL, args=args, reward_funcs=digits, train_dataset=Dataset.from_list(rows)).train()
