"""Train a small model to answer city questions briefly.

Each example has several phrasings of its question. Drawing one with a dataset transform works as data
augmentation: the policy should not overfit to one wording.
"""

import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CITIES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Seoul"]
PHRASINGS = [
    "Which country is {city} in?",
    "Name the country of the city {city}.",
    "{city}: which country?",
    "I am in {city}. Where am I?",
]


def build_dataset():
    dataset = Dataset.from_dict({"city": CITIES})
    rng = random.Random(0)

    def to_prompt(batch):
        prompts = []
        for city in batch["city"]:
            question = rng.choice(PHRASINGS).format(city=city)
            prompts.append([{"role": "user", "content": question}])
        return {"prompt": prompts, "city": batch["city"]}

    dataset.set_transform(to_prompt)
    return dataset


def brevity_reward(completions, **kwargs):
    """Shorter answers are better; digits are never part of a country's name."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        digits = sum(c.isdigit() for c in text)
        rewards.append(-len(text) / 100 - 0.02 * digits)
    return rewards


def main():
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            seed=3,
        )
        trainer = GRPOTrainer(
            model=MODEL,
            reward_funcs=brevity_reward,
            args=args,
            train_dataset=build_dataset(),
            processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
        )
        trainer.train()


if __name__ == "__main__":
    main()
