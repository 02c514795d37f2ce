"""GRPO on small word problems with an accuracy and a format reward."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
THINGS = ["apples", "books", "cards", "eggs", "pens", "shells"]


def build_dataset(n=48, seed=3):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        name, thing = rng.choice(["Ada", "Ben", "Cleo", "Dev"]), rng.choice(THINGS)
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        question = f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b),
            }
        )
    return Dataset.from_list(rows)


def final_text(completion):
    message = completion[-1]
    message["content"] = re.sub(r"<<.*?>>", "", message["content"])
    message["content"] = message["content"].split("####")[-1].strip()
    return message["content"]


def accuracy_reward(completions, answer, **kwargs):
    rewards = []
    for completion, truth in zip(completions, answer):
        numbers = re.findall(r"\d+", final_text(completion))
        rewards.append(1.0 if numbers and numbers[-1] == truth else 0.0)
    return rewards


def format_reward(completions, **kwargs):
    scores = []
    for completion in completions:
        text = completion[-1]["content"]
        score = 0.0
        if "####" in text:
            score += 0.5
        if "<<" in text and ">>" in text:
            score += 0.25
        scores.append(score - 0.005 * len(text))
    return scores


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=28,
        learning_rate=1e-5,
        reward_weights=[1.0, 0.5],
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[accuracy_reward, format_reward],
        args=args,
        train_dataset=build_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
