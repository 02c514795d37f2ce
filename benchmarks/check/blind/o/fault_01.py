"""GRPO with an easy-to-hard curriculum: prompts are sorted by difficulty and walked in that order."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def build_dataset(n=32, seed=3):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        who, what = rng.choice(["Ada", "Ben", "Cleo", "Dev"]), rng.choice(["apples", "books", "cards"])
        a, b = rng.randint(2, 9), rng.randint(10, 40)
        question = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b),
                "difficulty": a * b,
            }
        )
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Walks the dataset from easy to hard, in chunks of the prompts of one generation batch."""

    def __init__(self, dataset, num_generations, prompts_per_batch, reuse):
        self.order = sorted(range(len(dataset)), key=lambda i: dataset[i]["difficulty"])
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.reuse = reuse

    def _chunks(self):
        for start in range(0, len(self.order) - self.prompts_per_batch + 1, self.prompts_per_batch):
            yield self.order[start : start + self.prompts_per_batch]

    def __iter__(self):
        for chunk in self._chunks():
            for _ in range(self.reuse):
                for _ in range(self.num_generations):
                    yield from chunk

    def __len__(self):
        full = len(self.order) // self.prompts_per_batch * self.prompts_per_batch
        return full * self.num_generations * self.reuse


class CurriculumGRPOTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset,
            num_generations=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            reuse=self.num_iterations * self.args.steps_per_generation,
        )


def digit_reward(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        scores.append(sum(c.isdigit() for c in text) / 8 + (2.0 if gold in text else 0.0))
    return scores


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    trainer = CurriculumGRPOTrainer(
        model=MODEL, reward_funcs=digit_reward, args=args, train_dataset=build_dataset()
    )
    trainer.train()


if __name__ == "__main__":
    main()
