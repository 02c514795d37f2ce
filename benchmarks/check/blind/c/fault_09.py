"""GRPO with a curriculum: easy problems come first."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class CurriculumSampler(Sampler):
    def __init__(self, difficulty, num_generations, prompts_per_batch, reuse):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.reuse = reuse

    def __iter__(self):
        step = self.prompts_per_batch
        for start in range(0, len(self.order) - step + 1, step):
            chunk = self.order[start : start + step]
            for _ in range(self.reuse):
                for _ in range(self.num_generations):
                    yield from chunk

    def __len__(self):
        full = len(self.order) // self.prompts_per_batch * self.prompts_per_batch
        return full * self.reuse * self.num_generations


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["difficulty"],
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
        )


def problem(rng):
    a, b = rng.randint(2, 15), rng.randint(2, 9)
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Eve has {a} boxes with {b} books each. How many books does Eve have?"},
        ],
        "answer": a * b,
        "difficulty": a * b,
    }


def reward(completions, answer, **kwargs):
    values = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        values.append(1.0 * (str(truth) in text) + 0.1 * text.count(">>") - 0.005 * len(text))
    return values


rng = random.Random(6)
trainer = CurriculumTrainer(
    model=MODEL,
    reward_funcs=reward,
    train_dataset=Dataset.from_list([problem(rng) for _ in range(60)]),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=2e-5,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()
