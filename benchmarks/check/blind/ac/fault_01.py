"""GRPO with length-bucketed prompts, so that a generation batch has little padding."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "tiny")


class BucketSampler(Sampler):
    """Random batches of prompts; within a batch, prompts are ordered by (noisy) length."""

    def __init__(self, lengths, prompts_per_batch, num_generations, repeat_count, noise=6.0, seed=0):
        self.lengths = lengths
        self.prompts_per_batch = prompts_per_batch
        self.num_generations = num_generations
        self.repeat_count = repeat_count
        self.noise = noise
        self.rng = random.Random(seed)

    def __len__(self):
        full = len(self.lengths) // self.prompts_per_batch
        return full * self.prompts_per_batch * self.num_generations * self.repeat_count

    def __iter__(self):
        order = list(range(len(self.lengths)))
        self.rng.shuffle(order)
        for start in range(0, len(order) - self.prompts_per_batch + 1, self.prompts_per_batch):
            chunk = order[start : start + self.prompts_per_batch]
            rows = [i for i in chunk for _ in range(self.num_generations)]
            rows.sort(key=lambda i: self.lengths[i] + self.rng.uniform(0, self.noise))
            for _ in range(self.repeat_count):
                yield from rows


class BucketedGRPO(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return BucketSampler(
            lengths=[len(row["prompt"][-1]["content"]) for row in dataset],
            prompts_per_batch=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )


def letter_share(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch in "eo" for ch in t) / (len(t) + 1) + 0.01 * len(t) for t in texts]


def main():
    questions = [f"What is {a} plus {b}?" + " Think first." * (a % 3) for a in range(2, 8) for b in (3, 14, 115)]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions])
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        temperature=1.3,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = BucketedGRPO(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=letter_share,
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()
