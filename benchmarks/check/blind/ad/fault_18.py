import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TEMPLATE = [
    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
    {"role": "user", "content": ""},
]


def make_dataset(size, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(size):
        who = rng.choice(["Ada", "Ben", "Cleo", "Dev"])
        thing = rng.choice(["apples", "books", "pens"])
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        messages = list(TEMPLATE)
        messages[1]["content"] = f"{who} has {a} boxes with {b} {thing} each. How many {thing} does {who} have?"
        rows.append({"prompt": messages, "thing": thing})
    return Dataset.from_list(rows)


def thing_named(completions, thing, **kwargs):
    return [0.5 * (t in c[0]["content"]) for c, t in zip(completions, thing)]


def closing_line(completions, **kwargs):
    return [1.0 if "####" in c[0]["content"] else 0.0 for c in completions]


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 50 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[thing_named, closing_line, variety],
        args=args,
        train_dataset=make_dataset(64, seed=1),
    )
    trainer.train()


main()
