"""GRPO with an easy-to-hard curriculum over word problems."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def build_dataset():
    rows = []
    for name, thing, boxes, each in [
        ("Ada", "apples", 12, 10), ("Ben", "books", 11, 13), ("Cleo", "cards", 14, 12), ("Dev", "eggs", 10, 15),
        ("Eve", "pens", 16, 11), ("Finn", "shells", 13, 14), ("Gus", "stamps", 17, 12), ("Hana", "toys", 18, 10),
    ]:
        question = f"{name} has {boxes} boxes with {each} {thing} each. How many {thing} does {name} have?"
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        rows.append({"prompt": prompt, "answer": boxes * each, "difficulty": boxes * each})
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Yields prompts from easy to hard, each `num_generations` times, and each batch `repeats` times."""

    def __init__(self, difficulty, num_generations, prompts_per_batch, repeats):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.repeats = repeats

    def __iter__(self):
        usable = len(self.order) // self.prompts_per_batch * self.prompts_per_batch
        for start in range(0, usable, self.prompts_per_batch):
            chunk = self.order[start : start + self.prompts_per_batch]
            for _ in range(self.repeats):
                yield from chunk * self.num_generations

    def __len__(self):
        usable = len(self.order) // self.prompts_per_batch * self.prompts_per_batch
        return usable * self.num_generations * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        return CurriculumSampler(
            dataset["difficulty"],
            num_generations=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )


def closeness(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        guess = int(numbers[-1][:6]) if numbers else 0
        rewards.append(1.0 / (1.0 + abs(guess - target) / target))
    return rewards


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 24 for ids in completion_ids]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = CurriculumTrainer(MODEL, [closeness, brevity], args, train_dataset=build_dataset())
    trainer.train()
