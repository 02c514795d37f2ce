import itertools
import os
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer


class EasyFirst(Sampler):
    """Prompts from easy to hard, in blocks that are shuffled inside. Each prompt stands num_generations times in a row,
    each generation batch as often as the trainer takes a batch from the loader before it generates again."""

    def __init__(self, levels, group, prompts_per_batch, repeats, block=8, seed=0):
        self.levels, self.group, self.per, self.repeats = list(levels), group, prompts_per_batch, repeats
        self.block, self.seed = block, seed

    def _order(self):
        g = torch.Generator().manual_seed(self.seed)
        by_level = sorted(range(len(self.levels)), key=self.levels.__getitem__)
        for s in range(0, len(by_level), self.block):
            chunk = by_level[s : s + self.block]
            yield from (chunk[i] for i in torch.randperm(len(chunk), generator=g).tolist())

    def __iter__(self):
        order = iter(self._order())
        while len(batch := list(itertools.islice(order, self.per))) == self.per:
            rows = [i for i in batch for _ in range(self.group)]
            for _ in range(self.repeats):
                yield from rows

    def __len__(self):
        return len(self.levels) // self.per * self.per * self.group * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        ds = self.train_dataset if dataset is None else dataset
        return EasyFirst(
            ds["level"],
            group=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def reward(completions, gold, level, **kw):
    return [(1 + lv) * float(g in c) - 0.02 * len(c) for c, g, lv in zip(completions, gold, level)]


rows = [{"prompt": f"{a}+{b}=", "gold": str(a + b), "level": (a + b) // 5} for a in range(1, 9) for b in range(1, 9)]
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    steps_per_generation=2,
    gradient_accumulation_steps=1,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    learning_rate=2e-5,
    max_steps=4,
    use_cpu=True,
    bf16=False,
    report_to="none",
    save_strategy="no",
    logging_steps=1,
)
CurriculumTrainer(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"), reward, args, Dataset.from_list(rows)
).train()
