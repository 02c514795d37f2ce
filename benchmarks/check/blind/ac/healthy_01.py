"""GRPO with length-bucketed prompts from an own sampler and a cosine schedule with warm restarts."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class NoisyLengthSampler(Sampler):
    def __init__(self, dataset, prompts_per_batch, num_generations, repeat_count, noise=8.0, seed=0):
        self.lengths = [len(row["prompt"][-1]["content"]) for row in dataset]
        self.prompts_per_batch = prompts_per_batch
        self.num_generations = num_generations
        self.repeat_count = repeat_count
        self.noise = noise
        self.rng = random.Random(seed)

    def __len__(self):
        batches = len(self.lengths) // self.prompts_per_batch
        return batches * self.prompts_per_batch * self.num_generations * self.repeat_count

    def _batches(self):
        keyed = sorted((length + self.rng.uniform(0, self.noise), i) for i, length in enumerate(self.lengths))
        order = [i for _, i in keyed]
        batches = [order[k : k + self.prompts_per_batch] for k in range(0, len(order), self.prompts_per_batch)]
        batches = [b for b in batches if len(b) == self.prompts_per_batch]
        self.rng.shuffle(batches)
        return batches

    def __iter__(self):
        for batch in self._batches():
            rows = [i for i in batch for _ in range(self.num_generations)]
            for _ in range(self.repeat_count):
                yield from rows


class NoisyLengthGRPO(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return NoisyLengthSampler(
            self.train_dataset if dataset is None else dataset,
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeat_count=self.args.steps_per_generation * self.num_iterations,
            seed=self.args.seed,
        )


def consonants(completions, **kwargs):
    return [sum(ch in "nrstl" for ch in c[0]["content"]) / 12 + 0.01 * len(c[0]["content"]) for c in completions]


def main():
    questions = [f"What is {a} plus {b}?" + " Think first." * (a % 3) for a in range(2, 8) for b in (3, 14, 115)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=28,
        temperature=1.2,
        learning_rate=1e-4,
        lr_scheduler_type="cosine_with_restarts",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = NoisyLengthGRPO(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=consonants,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
