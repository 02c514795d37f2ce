"""A curriculum: prompts from easy to hard, each rollout used twice.

The sampler of the trainer shuffles. Ours walks through the dataset in the order of the column `level`, and inside a
level in a fixed random order. Groups stay together, and each batch comes back for the second pass.
"""

import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CurriculumSampler(Sampler):
    def __init__(self, levels, group, prompts_per_batch, repeats, seed):
        rng = random.Random(seed)
        keyed = [(level, rng.random(), index) for index, level in enumerate(levels)]
        self.order = [index for _, _, index in sorted(keyed)]
        self.group = group
        self.prompts_per_batch = prompts_per_batch
        self.repeats = repeats
        self.batches = len(self.order) // prompts_per_batch

    def __iter__(self):
        for b in range(self.batches):
            chunk = self.order[b * self.prompts_per_batch : (b + 1) * self.prompts_per_batch]
            one_pass = [index for index in chunk for _ in range(self.group)]
            for _ in range(self.repeats):
                yield from one_pass

    def __len__(self):
        return self.batches * self.prompts_per_batch * self.group * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["level"],
            group=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def copies(completions, word, level, **kwargs):
    """Letters of the word that turn up in the answer; harder words count more."""
    rewards = []
    for text, w, l in zip(completions, word, level):
        found = sum(c in text for c in w)
        rewards.append((1 + 0.1 * l) * found / len(w) - len(text) / 60)
    return rewards


def main():
    words = ["a91", "b99", "cat5", "dog92", "horse", "lemon93", "violet", "penguin", "umbrella9", "helicopter"]
    random.Random(1).shuffle(words)
    dataset = Dataset.from_dict(
        {"prompt": [f"Copy: {w} -> " for w in words], "word": words, "level": [len(w) for w in words]}
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_iterations=2,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = CurriculumTrainer(model=MODEL, reward_funcs=copies, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
