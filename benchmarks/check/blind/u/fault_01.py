"""GRPO with a curriculum: prompts are visited from easy to hard, a new stage of the data every step.

The sampler replaces TRL's shuffled RepeatSampler. Each stage gives `prompts_per_batch` prompts, each of them
`num_generations` times, so that a group sits together in the generation batch.
"""

import os
import random
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build_dataset(n=48, seed=7):
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        terms = 2 + i // 12
        numbers = [rng.randint(1, 9 * (1 + i // 16)) for _ in range(terms)]
        rows.append(
            {
                "prompt": [{"role": "user", "content": "What is " + " + ".join(map(str, numbers)) + "?"}],
                "answer": sum(numbers),
                "difficulty": terms * max(numbers),
            }
        )
    rng.shuffle(rows)
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Indices in the order of difficulty, in stages of `prompts_per_batch`, with the hardest stage reached last."""

    def __init__(self, difficulties, prompts_per_batch, num_generations, repeats):
        self.order = sorted(range(len(difficulties)), key=lambda i: difficulties[i])
        self.prompts_per_batch = prompts_per_batch
        self.num_generations = num_generations
        self.repeats = repeats

    def stages(self):
        n = self.prompts_per_batch
        for start in range(0, len(self.order) - n + 1, n):
            yield self.order[start : start + n]

    def __iter__(self):
        for stage in self.stages():
            for _ in range(self.repeats):
                for _ in range(self.num_generations):
                    yield from stage

    def __len__(self):
        return (len(self.order) // self.prompts_per_batch) * self.prompts_per_batch * self.num_generations * self.repeats


class CurriculumGRPOTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["difficulty"],
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )


def closeness(completions, answer, **kwargs):
    scores = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        found = re.findall(r"\d+", text)
        digits = sum(c.isdigit() for c in text) / max(len(text), 1)
        scores.append(0.3 * digits + 0.02 * len(set(text)) + (1.0 / (1 + abs(int(found[-1][:6]) - target)) if found else 0.0))
    return scores


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=12, num_generations=4, max_completion_length=16, learning_rate=1e-4,
        logging_steps=1, seed=11,
    )
    trainer = CurriculumGRPOTrainer(
        model=TINY, reward_funcs=[closeness], args=args, train_dataset=build_dataset(),
    )
    trainer.train()
