"""CISPO (MiniMax-M1) on arithmetic, with DAPO's extras: asymmetric clipping and soft overlong punishment."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
MAX_LENGTH, CACHE = 32, 8


def soft_overlong_punishment(completion_ids, **kwargs):
    rewards = []
    for ids in completion_ids:
        over = len(ids) - (MAX_LENGTH - CACHE)
        rewards.append(0.0 if over <= 0 else -over / CACHE)
    return rewards


def answer_reward(completions, answer, **kwargs):
    rewards = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        rewards.append(1.0 if text.rstrip().endswith(gold) else 0.05 * sum(c in gold for c in text))
    return rewards


def load(n=32, seed=19):
    rng = random.Random(seed)
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        yield {
            "prompt": [{"role": "user", "content": f"Ben has {a} boxes with {b} shells each. How many shells does Ben have?"}],
            "answer": str(a * b),
        }


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=MAX_LENGTH,
        loss_type="cispo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        scale_rewards="batch",
        max_steps=4,
        learning_rate=5e-5,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    GRPOTrainer(
        model=MODEL,
        reward_funcs=[answer_reward, soft_overlong_punishment],
        args=args,
        train_dataset=Dataset.from_list(list(load())),
    ).train()
