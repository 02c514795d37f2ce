"""GRPO with a curriculum, off-policy micro-batches, and only the tokens of high entropy in the loss."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class EasyAndHardSampler(Sampler):
    """Each generation batch has easy and hard prompts, taken from both ends of the sorted data."""

    def __init__(self, difficulty, num_generations, prompts_per_batch, repeats):
        ranked = sorted(range(len(difficulty)), key=difficulty.__getitem__)
        self.chunks = []
        while len(ranked) >= prompts_per_batch:
            chunk = []
            for k in range(prompts_per_batch):
                chunk.append(ranked.pop(0 if k % 2 == 0 else -1))
            self.chunks.append(chunk)
        self.num_generations = num_generations
        self.repeats = repeats

    def __iter__(self):
        for chunk in self.chunks:
            batch = [index for index in chunk for _ in range(self.num_generations)]
            for _ in range(self.repeats):
                yield from batch

    def __len__(self):
        return sum(len(chunk) for chunk in self.chunks) * self.num_generations * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return EasyAndHardSampler(
            list(dataset["difficulty"]),
            self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )


def closeness(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        guess = int(numbers[-1][:6]) if numbers else 0
        scores.append(1 / (1 + abs(guess - value) / value))
    return scores


def tidy(completions, **kwargs):
    return [-0.1 * c[0]["content"].count("\n\n") - 0.005 * len(c[0]["content"]) for c in completions]


def build():
    rows = []
    for i in range(16):
        who = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"][i % 8]
        a, b = 10 + i // 2, 11 + (5 * i) % 9
        text = f"{who} has {a} boxes with {b} stamps each. How many stamps does {who} have?"
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        rows.append({"prompt": prompt, "answer": a * b, "difficulty": a * b})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=24,
        top_entropy_quantile=0.5,
        epsilon_high=0.28,
        loss_type="bnpo",
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    CurriculumTrainer(MODEL, [closeness, tidy], args, train_dataset=build()).train()
