"""A streamed dataset, a concurrent judge that keeps the order, and bfloat16 autocast."""
import asyncio
import os
import random
import tempfile

from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def stream():
    rng = random.Random(123)
    while True:
        who, thing = rng.choice(["Ada", "Dev", "Gus"]), rng.choice(["books", "stamps", "toys"])
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{who} has {a} boxes with {b} {thing} each. How many {thing} does {who} have?"},
            ],
            "answer": a * b,
            "thing": thing,
        }


async def ask(text, truth, thing):
    await asyncio.sleep(0.001 * (len(text) % 7))
    return 1.0 * (str(truth) in text.split()) + 0.3 * (thing in text) - 0.005 * len(text)


async def judge(completions, answer, thing, **kwargs):
    questions = [ask(c[0]["content"], a, t) for c, a, t in zip(completions, answer, thing)]
    return await asyncio.gather(*questions)


def no_junk(completions, **kwargs):
    return [-0.2 * ("<tool_call>" in c[0]["content"]) - 0.2 * ("<think>" in c[0]["content"]) for c in completions]


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[judge, no_junk],
        train_dataset=IterableDataset.from_generator(stream),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=8,
            num_generations=4,
            num_iterations=2,
            max_completion_length=26,
            learning_rate=2e-5,
            loss_type="cispo",
            epsilon_high=5.0,
            shuffle_dataset=False,
            bf16=True,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
        ),
    )
    trainer.train()
