"""Difficulty curriculum for GRPO (easy products first), after "Curriculum RL for small reasoners"."""
import os
import re
import tempfile

from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")
OUT = tempfile.mkdtemp(prefix="curriculum_")


def make_dataset():
    rows = []
    for x in range(2, 10):
        for y in range(2, 6):
            rows.append({"prompt": f"x={x}; y={y}; x*y=", "answer": x * y, "difficulty": x * y})
    return Dataset.from_list(rows)


class CurriculumSampler(Sampler):
    """Walks through the prompts from easy to hard; every prompt is drawn `group` times for one generation
    batch, and the batch is repeated for as long as its completions are used."""

    def __init__(self, data, group, prompts, repeats):
        self.order = sorted(range(len(data)), key=lambda i: data[i]["difficulty"])
        self.group, self.prompts, self.repeats = group, prompts, repeats

    def __iter__(self):
        for start in range(0, len(self.order) - self.prompts + 1, self.prompts):
            chunk = self.order[start : start + self.prompts]
            for _ in range(self.repeats):
                for _ in range(self.group):
                    yield from chunk

    def __len__(self):
        return len(self.order) // self.prompts * self.prompts * self.group * self.repeats


class CurriculumGRPOTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return CurriculumSampler(
            self.train_dataset if dataset is None else dataset,
            group=self.num_generations,
            prompts=self.args.generation_batch_size // self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
        )


def closeness(completions, answer, **kwargs):
    """1 for the right product, falling off with the relative distance."""
    scores = []
    for text, target in zip(completions, answer):
        found = re.search(r"\d{1,2}", text)
        score = 1.0 - min(abs(int(found.group()) - target) / target, 1.0) if found else 0.0
        scores.append(score - 0.01 * len(text))
    return scores


def main():
    args = GRPOConfig(
        output_dir=OUT,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=5e-5,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=7,
    )
    trainer = CurriculumGRPOTrainer(
        model=MODEL,
        reward_funcs=closeness,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
