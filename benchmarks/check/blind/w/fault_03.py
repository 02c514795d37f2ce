"""GRPO with a curriculum: prompts are visited from easy to hard instead of in a random order."""
import os
import random
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(3)
    rows = []
    for _ in range(n):
        digits = rng.randint(1, 5)
        a, b = rng.randrange(10 ** digits), rng.randrange(10 ** digits)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Compute {a} - {b}. Reply with the number."}],
                "answer": str(a - b),
                "difficulty": digits,
            }
        )
    return Dataset.from_list(rows)


def closeness(completions, answer, difficulty, **kwargs):
    out = []
    for completion, target, level in zip(completions, answer, difficulty):
        text = completion[0]["content"]
        hits = sum(ch in text for ch in target)
        out.append(hits / len(target) + 0.1 * level - 0.01 * len(text))
    return out


class CurriculumSampler(Sampler):
    """Easy prompts first. Each chunk of prompts fills one generation batch, and is visited `repeat_count` times."""

    def __init__(self, difficulty, prompts_per_batch, num_generations, repeat_count):
        self.order = sorted(range(len(difficulty)), key=lambda i: difficulty[i])
        self.prompts_per_batch = prompts_per_batch
        self.num_generations = num_generations
        self.repeat_count = repeat_count

    def __iter__(self):
        size = self.prompts_per_batch
        for start in range(0, len(self.order) - size + 1, size):
            chunk = self.order[start : start + size]
            for _ in range(self.repeat_count):
                for _ in range(self.num_generations):
                    yield from chunk

    def __len__(self):
        chunks = len(self.order) // self.prompts_per_batch
        return chunks * self.prompts_per_batch * self.num_generations * self.repeat_count


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["difficulty"],
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
        )


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=3e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=16,
        loss_type="bnpo",
    )
    trainer = CurriculumTrainer(
        model=TINY,
        reward_funcs=closeness,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
