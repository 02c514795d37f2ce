"""GRPO with a curriculum: easy sums first, harder ones later (no shuffling across levels)."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CurriculumSampler(Sampler):
    """Yields prompts from easy to hard, each num_generations times, and each chunk once per pass over it."""

    def __init__(self, difficulty, num_generations, prompts_per_batch, passes):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.num_generations = num_generations
        self.prompts_per_batch = prompts_per_batch
        self.passes = passes

    def __iter__(self):
        step = self.prompts_per_batch
        chunks = [self.order[i : i + step] for i in range(0, len(self.order), step)]
        for chunk in chunks:
            if len(chunk) < step:
                continue
            for _ in range(self.passes):
                for _ in range(self.num_generations):
                    yield from chunk

    def __len__(self):
        return len(self.order) // self.prompts_per_batch * self.prompts_per_batch * self.num_generations * self.passes


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = dataset if dataset is not None else self.train_dataset
        return CurriculumSampler(
            dataset["difficulty"],
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
        )


def digits(completions, answer, **kwargs):
    """Share of characters that are digits, plus one if the answer is in the text."""
    scores = []
    for completion, right in zip(completions, answer):
        text = completion[0]["content"]
        share = len(re.findall(r"[0-9]", text)) / max(len(text), 1)
        scores.append(share + float(right in text))
    return scores


def build():
    rows = []
    for k in range(24):
        a, b = 3 + 7 * k % 40, 2 + 5 * k % 17
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
                "answer": str(a + b),
                "difficulty": a + b,
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-4,
        logging_steps=1,
    )
    trainer = CurriculumTrainer(model=TINY, reward_funcs=digits, args=args, train_dataset=build())
    trainer.train()
