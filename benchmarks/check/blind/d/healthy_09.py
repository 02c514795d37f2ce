"""VESPO in bfloat16 autocast at temperature 0.7, with an entropy bonus, on the most uncertain tokens only."""
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def to_chat(example):
    example["prompt"] = [
        {"role": "system", "content": example.pop("system")},
        {"role": "user", "content": example.pop("question")},
    ]
    return example


def contains(completions, gold, **kwargs):
    return [1.0 if g in c[0]["content"] else 0.0 for c, g in zip(completions, gold)]


def spread(completions, **kwargs):
    return [0.02 * len(set(c[0]["content"])) - 0.01 * len(c[0]["content"]) for c in completions]


def closeness(completions, gold, **kwargs):
    scores = []
    for c, g in zip(completions, gold):
        numbers = [int(n[:5]) for n in re.findall(r"\d+", c[0]["content"])]
        scores.append(max((-abs(n - int(g)) / 100 for n in numbers), default=-1.0))
    return [max(s, -1.0) for s in scores]


def main():
    rng = random.Random(16)
    rows = []
    for _ in range(64):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        rows.append(
            {
                "system": "Answer with one number.",
                "question": f"{rng.choice(['Ben', 'Dev', 'Hana'])} has {a} boxes with {b} toys each. How many?",
                "gold": str(a * b),
            }
        )
    dataset = Dataset.from_list(rows).map(to_chat).filter(lambda e: int(e["gold"]) > 6)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        temperature=0.7,
        max_steps=4,
        learning_rate=2e-5,
        loss_type="vespo",
        top_entropy_quantile=0.5,
        entropy_coef=0.01,
        bf16=True,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[contains, spread, closeness],
        args=args,
        train_dataset=dataset,
    )
    trainer.train()


if __name__ == "__main__":
    main()
