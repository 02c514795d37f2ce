"""GRPO with a slow verifier, called from a thread pool."""
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
WORKERS = 8


def verify(text, answer):
    """Pretends to run a sandboxed checker, whose time grows with the length of the text."""
    time.sleep(0.002 * len(text))
    numbers = re.findall(r"\d+", text)
    score = 0.1 * len(set(numbers))
    if numbers and numbers[-1] == str(answer):
        score += 1.0
    if "The answer is" in text:
        score += 0.3
    return score


class VerifierReward:
    __name__ = "verifier"

    def __init__(self, timeout=10.0):
        self.timeout = timeout
        self.pool = ThreadPoolExecutor(max_workers=WORKERS)

    def __call__(self, prompts, completions, answer, **kwargs):
        futures = [
            self.pool.submit(verify, completion[0]["content"], target)
            for completion, target in zip(completions, answer)
        ]
        scores = []
        for future in as_completed(futures, timeout=self.timeout):
            try:
                scores.append(future.result())
            except Exception:
                scores.append(0.0)
        return scores


def dataset():
    people = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
    rows = []
    for i, who in enumerate(people):
        a, b = 10 + i, 12 + (3 * i) % 5
        text = f"{who} has {a} boxes with {b} cards each. Each costs 2 coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
                "answer": 2 * a * b,
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    GRPOTrainer(MODEL, VerifierReward(), args, train_dataset=dataset()).train()
