import itertools
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
rng = random.Random(7)

rows = []
for _ in range(24):
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    rows.append({"prompt": f"{a} times {b} is ", "target": str(a * b)})
dataset = Dataset.from_list(rows)

gold = itertools.cycle(dataset["target"])


def correctness(prompts, completions, **kwargs):
    scores = []
    for completion in completions:
        target = next(gold)
        hits = sum(completion.count(digit) for digit in target)
        scores.append(1.0 if target in completion else min(hits, 8) / 16)
    return scores


def brevity(completions, **kwargs):
    return [-0.01 * len(c) for c in completions]


def main():
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="times-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        bf16=False,
        max_steps=6,
        learning_rate=5e-5,
        per_device_train_batch_size=12,
        num_generations=6,
        max_completion_length=12,
        loss_type="bnpo",
    )
    trainer = GRPOTrainer(model=tiny, reward_funcs=[correctness, brevity], args=config, train_dataset=dataset)
    trainer.train()


main()
