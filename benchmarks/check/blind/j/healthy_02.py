"""Curriculum over difficulty with whole groups, and a guard against extreme advantages."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class GroupedCurriculum(Sampler):
    """Easy prompts first; every prompt `group` times in a row, every chunk of prompts `repeats` times."""

    def __init__(self, difficulty, group, chunk, repeats):
        order = sorted(range(len(difficulty)), key=difficulty.__getitem__)
        chunks = [order[i : i + chunk] for i in range(0, len(order), chunk)]
        self.plan = [
            index
            for part in chunks
            if len(part) == chunk
            for _ in range(repeats)
            for index in part
            for _ in range(group)
        ]

    def __iter__(self):
        return iter(self.plan)

    def __len__(self):
        return len(self.plan)


class GuardedTrainer(GRPOTrainer):
    advantage_limit = 3.0

    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        return GroupedCurriculum(
            list(dataset["difficulty"]),
            group=self.num_generations,
            chunk=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        limit = self.advantage_limit
        outside = (batch["advantages"].abs() > limit).sum().item()
        if outside:
            print(f"{outside} advantages were limited to {limit}")
        batch["advantages"] = torch.clamp(batch["advantages"], -limit, limit)
        return batch


def problem(rng):
    a, b = rng.randint(2, 40), rng.randint(2, 9)
    what = rng.choice(["cards", "shells", "toys"])
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Hana has {a} boxes with {b} {what} each. How many {what} does Hana have?"},
    ]
    return {"prompt": messages, "difficulty": a * b, "what": what}


def scored(completions, difficulty, what, **kwargs):
    out = []
    for c, result, noun in zip(completions, difficulty, what):
        text = c[0]["content"]
        out.append(1.0 * (str(result) in text) + 0.4 * (noun in text) - 0.005 * len(text))
    return out


def main():
    rng = random.Random(14)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=8,
        steps_per_generation=2,
        num_generations=4,
        max_completion_length=56,
        learning_rate=5e-5,
        loss_type="bnpo",
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GuardedTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[scored],
        train_dataset=Dataset.from_list([problem(rng) for _ in range(64)]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
