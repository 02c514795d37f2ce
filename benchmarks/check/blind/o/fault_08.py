"""GRPO with a (mock) remote judge. Requests are sent concurrently, since the judge is slow on long answers."""
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"]


class Judge:
    """Stands in for an HTTP judge; latency grows with the text, as it does with a language model."""

    def __init__(self, workers=8, retries=2):
        self.pool = ThreadPoolExecutor(max_workers=workers)
        self.retries = retries

    def _score_once(self, text: str) -> float:
        time.sleep(0.002 * (1 + len(text)))
        return sum(c in "48" for c in text) - 0.25 * text.count("</think>")

    def _score(self, text: str) -> float:
        for _ in range(self.retries):
            try:
                return self._score_once(text)
            except OSError:
                continue
        return 0.0

    def __call__(self, texts: list[str]) -> list[float]:
        pending = [self.pool.submit(self._score, text) for text in texts]
        return [done.result() for done in as_completed(pending, timeout=30)]


judge = Judge()


def judge_reward(completions, **kwargs):
    return judge([c[-1]["content"] for c in completions])


def make_dataset(n=32):
    rng = random.Random(8)
    rows = []
    for _ in range(n):
        who = rng.choice(NAMES)
        rows.append(
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": f"{who} has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} cards each. "
                        f"How many cards does {who} have?",
                    }
                ]
            }
        )
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="grpo",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    GRPOTrainer(model=MODEL, reward_funcs=judge_reward, args=args, train_dataset=make_dataset()).train()


if __name__ == "__main__":
    main()
