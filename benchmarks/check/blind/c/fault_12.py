"""CISPO with two passes over each generation."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def reward_answer(completions, answer, **kwargs):
    return [1.0 if c[0]["content"].rstrip().endswith(a) else -1.0 for c, a in zip(completions, answer)]


def reward_steps(completions, **kwargs):
    rewards = []
    for c in completions:
        text = c[0]["content"]
        rewards.append(min(text.count("<<"), text.count(">>")) - 0.02 * len(text))
    return rewards


def make_dataset(size, seed):
    rng = random.Random(seed)

    def rows():
        for _ in range(size):
            a, b, c = rng.randint(2, 6), rng.randint(2, 9), rng.randint(2, 9)
            yield {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {
                        "role": "user",
                        "content": f"Ada has {a} boxes with {b} stamps each. Each costs {c} coins. "
                        "How many coins do they cost together?",
                    },
                ],
                "answer": str(a * b * c),
            }

    return Dataset.from_list(list(rows()))


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=8,
    num_generations=4,
    num_iterations=2,
    max_completion_length=32,
    learning_rate=2e-5,
    loss_type="cispo",
    epsilon=0.2,
    epsilon_high=0.28,
    reward_weights=[1.0, 0.3],
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[reward_answer, reward_steps],
    args=args,
    train_dataset=make_dataset(40, seed=12),
)
trainer.train()
