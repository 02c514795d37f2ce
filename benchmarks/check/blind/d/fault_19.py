"""GRPO with two rewards: the answer after the reasoning, and the format of the whole text."""
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = "Reason between <think> and </think>. Then give the number."


def final_text(message):
    """The part of an answer after its reasoning."""
    if "<think>" in message["content"]:
        message["content"] = message["content"].split("<think>")[-1].split("</think>")[-1].strip()
    return message["content"]


def accuracy_reward(completions, answer, **kwargs):
    rewards = []
    for completion, expected in zip(completions, answer):
        text = final_text(completion[-1])
        numbers = re.findall(r"\d+", text)
        rewards.append(1.0 if numbers and numbers[-1] == expected else 0.1 * bool(numbers))
    return rewards


def format_reward(completions, **kwargs):
    """A third each for opening the reasoning, closing it, and closing it after it was opened."""
    rewards = []
    for completion in completions:
        text = completion[-1]["content"]
        start, end = text.find("<think>"), text.find("</think>")
        rewards.append(((start >= 0) + (end >= 0) + (0 <= start < end)) / 3)
    return rewards


def length_penalty(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def build(n):
    rng = random.Random(19)
    kinds = [("+", lambda a, b: a + b), ("*", lambda a, b: a * b), ("-", lambda a, b: a - b)]
    rows = []
    for _ in range(n):
        symbol, function = rng.choice(kinds)
        a, b = rng.randint(10, 20), rng.randint(2, 9)
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"What is {a} {symbol} {b}?"},
                ],
                "answer": str(function(a, b)),
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=5e-5,
        reward_weights=[1.0, 0.6, 1.0],
        multi_objective_aggregation="normalize_then_sum",
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[accuracy_reward, format_reward, length_penalty],
        args=args,
        train_dataset=build(48),
    )
    trainer.train()
