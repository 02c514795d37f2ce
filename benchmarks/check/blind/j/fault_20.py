"""Curriculum: easy (short) problems first."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class CurriculumSampler(Sampler):
    def __init__(self, difficulties, jitter=0.5, seed=0):
        self.difficulties = list(difficulties)
        self.jitter = jitter
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)
        noisy = [(d + rng.uniform(-self.jitter, self.jitter), i) for i, d in enumerate(self.difficulties)]
        return iter([i for _, i in sorted(noisy)])

    def __len__(self):
        return len(self.difficulties)


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(dataset["difficulty"], seed=self.args.seed)


def problems(n=120):
    rng = random.Random(21)
    for _ in range(n):
        a, b = rng.randint(2, 40), rng.randint(2, 9)
        what = rng.choice(["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"])
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Ben has {a} boxes with {b} {what} each. How many {what} does Ben have?"},
            ],
            "difficulty": float(len(str(a * b))),
            "answer": str(a * b),
            "what": what,
        }


def answer_reward(completions, answer, **kwargs):
    return [1.0 * (a in c[0]["content"]) for c, a in zip(completions, answer)]


def noun_reward(completions, what, **kwargs):
    return [0.5 * (w in c[0]["content"]) for c, w in zip(completions, what)]


def length_reward(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def main():
    trainer = CurriculumTrainer(
        model=MODEL,
        reward_funcs=[answer_reward, noun_reward, length_reward],
        train_dataset=Dataset.from_list(list(problems())),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=44,
            learning_rate=1e-4,
            max_steps=5,
            logging_steps=1,
            save_strategy="no",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
