import os, tempfile
from torch.utils.data import Sampler
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class EasyToHard(Sampler):
    """Walks through the rows by difficulty; every row comes G times in a row, every batch `reuse` times."""

    def __init__(self, difficulty, G, rows_per_batch, reuse):
        self.order = sorted(range(len(difficulty)), key=difficulty.__getitem__)
        self.G, self.n, self.reuse = G, rows_per_batch, reuse

    def _blocks(self):
        for i in range(0, len(self.order) - self.n + 1, self.n):
            yield [j for j in self.order[i:i + self.n] for _ in range(self.G)]

    def __iter__(self):
        for block in self._blocks():
            for _ in range(self.reuse):
                yield from block

    def __len__(self):
        return (len(self.order) // self.n) * self.n * self.G * self.reuse


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        ds = self.train_dataset if dataset is None else dataset
        return EasyToHard(
            list(ds["difficulty"]), self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
        )


pairs = [(a, b) for a in range(1, 8) for b in range(1, 5)]
ds = Dataset.from_dict({"prompt": [f"{a}*{b}=" for a, b in pairs], "difficulty": [a * b for a, b in pairs]}).shuffle(seed=3)


def r(prompts, completions, difficulty, **kw):
    return [sum(c.isdigit() for c in t) / (5 + d) for t, d in zip(completions, difficulty)]


args = GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
                  per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_steps=6,
                  num_iterations=2, max_completion_length=16, learning_rate=3e-4, loss_type="bnpo")
CurriculumTrainer(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"), r, args, ds).train()
