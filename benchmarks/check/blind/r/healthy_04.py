"""Easy-to-hard curriculum with an own sampler, and two updates from each generation batch.

Four micro-batches are generated at once; each optimizer step uses two of them.
"""

import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EasyFirst(Sampler):
    """Chunks of prompts by rising difficulty; order within a difficulty is random but fixed by the seed."""

    def __init__(self, difficulty, chunk, group, repeats, seed=0):
        rng = random.Random(seed)
        order = list(range(len(difficulty)))
        rng.shuffle(order)
        self.order = sorted(order, key=lambda i: difficulty[i])
        self.chunk, self.group, self.repeats = chunk, group, repeats

    def __iter__(self):
        for start in range(0, len(self.order) - self.chunk + 1, self.chunk):
            chunk = self.order[start:start + self.chunk]
            rows = [index for index in chunk for _ in range(self.group)]
            for _ in range(self.repeats):
                yield from rows

    def __len__(self):
        return len(self.order) // self.chunk * self.chunk * self.group * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return EasyFirst(
            dataset["level"],
            chunk=self.args.generation_batch_size // self.num_generations,
            group=self.num_generations,
            repeats=self.args.steps_per_generation * self.num_iterations,
            seed=self.args.seed,
        )


def spell_reward(completions, word, **kwargs):
    """Share of the word's letters that the completion contains, minus its length."""
    rewards = []
    for completion, target in zip(completions, word):
        text = completion[0]["content"].lower()
        rewards.append(len(set(target) & set(text)) / len(set(target)) - 0.003 * len(text))
    return rewards


if __name__ == "__main__":
    words = ["at", "to", "sun", "tea", "rope", "sand", "table", "stone", "planet", "silver", "lantern",
             "harvest", "mountain", "elephant", "telescope", "adventure"]
    dataset = Dataset.from_list([
        {"prompt": [{"role": "user", "content": f"Spell the word {word}."}], "word": word, "level": len(word)}
        for word in words
    ])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4,
        num_generations=4, max_completion_length=16, learning_rate=5e-4, max_steps=3, logging_steps=1,
    )
    trainer = CurriculumTrainer(model=MODEL, reward_funcs=spell_reward, args=args, train_dataset=dataset)
    trainer.train()
