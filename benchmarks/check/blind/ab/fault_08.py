"""Own sampler: curriculum buckets (short prompts first), shuffled within a bucket."""
import os
import tempfile

import numpy as np
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class BucketSampler(Sampler):
    def __init__(self, lengths, repeat, prompts_per_batch, rounds):
        self.order = np.argsort(lengths, kind="stable")
        self.repeat = repeat
        self.prompts_per_batch = prompts_per_batch
        self.rounds = rounds

    def __iter__(self):
        half = len(self.order) // 2
        walk = np.concatenate(
            [np.random.permutation(self.order[:half]), np.random.permutation(self.order[half:])]
        )
        for start in range(0, len(walk) - self.prompts_per_batch + 1, self.prompts_per_batch):
            chunk = walk[start : start + self.prompts_per_batch]
            for _ in range(self.rounds):
                for index in chunk:
                    for _ in range(self.repeat):
                        yield int(index)

    def __len__(self):
        return len(self.order) // self.prompts_per_batch * self.prompts_per_batch * self.rounds * self.repeat


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return BucketSampler(
            lengths=[len(row["prompt"][0]["content"]) for row in dataset],
            repeat=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            rounds=self.num_iterations * self.args.steps_per_generation,
        )


def i_share(completions, **kwargs):
    return [c[0]["content"].count("i") / (1 + len(c[0]["content"])) for c in completions]


def extent(completion_ids, **kwargs):
    return [len(ids) / 24 for ids in completion_ids]


themes = ["ice", "oak", "salt", "rust", "the slow river", "a broken clock", "moths by a lamp", "the last ferry home",
          "copper", "wind", "a letter never sent", "the orchard behind the school"]
rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"A verse on {t}:"}]} for t in themes])

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=4,
    num_generations=8,
    max_completion_length=24,
    learning_rate=1e-4,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    seed=2,
)
trainer = CurriculumTrainer(
    model=os.path.join(HERE, "tiny"), args=args, reward_funcs=[i_share, extent], train_dataset=rows
)
trainer.train()
