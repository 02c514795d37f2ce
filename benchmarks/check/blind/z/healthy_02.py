import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EasyFirst(Sampler):
    """Short questions first; every question fills a whole group, every batch is served as often as it is used."""

    def __init__(self, dataset, copies, prompts_per_batch, rounds):
        lengths = [len(row[-1]["content"]) for row in dataset["prompt"]]
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.copies, self.prompts_per_batch, self.rounds = copies, prompts_per_batch, rounds

    def _batches(self):
        step = self.prompts_per_batch
        for start in range(0, len(self.order) - step + 1, step):
            yield self.order[start : start + step]

    def __iter__(self):
        for batch in self._batches():
            rows = [index for index in batch for _ in range(self.copies)]
            for _ in range(self.rounds):
                yield from rows

    def __len__(self):
        return sum(len(b) for b in self._batches()) * self.copies * self.rounds


class CurriculumTrainer(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return EasyFirst(
            self.train_dataset if dataset is None else dataset,
            copies=self.num_generations,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            rounds=self.num_iterations * self.args.steps_per_generation,
        )


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [t.count("e") - 0.1 * t.count("\n") + 0.05 * len(set(t)) for t in texts]


def main():
    parts = ["two", "three and four", "five, six and seven", "eight plus nine", "ten", "eleven times twelve"]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Add up {p}{'!' * k}"}] for p in parts for k in (0, 1)]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=6e-05,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_completion_length=24,
        save_strategy='no',
    )
    trainer = CurriculumTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=reward,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()
