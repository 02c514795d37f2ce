import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Judge:
    """Stands for a slow judge; long answers take longer to read."""

    __name__ = "judge"

    def __init__(self, workers=16):
        self.workers = workers

    def score(self, text, gold):
        time.sleep(0.004 * len(text) + 0.002)
        digits = sum(ch.isdigit() for ch in text)
        return (2.0 if str(gold) in text else 0.0) + digits / (len(text) + 1)

    def __call__(self, completions, answer, **kwargs):
        texts = [c[0]["content"] for c in completions]
        scores = []
        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(self.score, text, gold) for text, gold in zip(texts, answer)]
            for future in as_completed(futures):
                try:
                    scores.append(future.result(timeout=10))
                except Exception:
                    scores.append(None)
        return scores


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


def problems():
    rows = []
    for i in range(48):
        name = ("Hana", "Cleo", "Finn")[i % 3]
        thing = ("coins", "cards", "apples", "books", "pens")[i % 5]
        a, b = 2 + (7 * i) % 6, 2 + (3 * i) % 7
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"},
            ],
            "answer": a * b,
        })
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=1e-4,
        loss_type="dapo",
        reward_weights=[1.0, 0.25],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    GRPOTrainer(MODEL, [Judge(), brevity], args, train_dataset=problems()).train()


if __name__ == "__main__":
    main()
