"""GRPO with a slow external grader, called in parallel."""
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
POOL = ThreadPoolExecutor(max_workers=8)


def grade(text, value):
    """Stands for a grader service: longer answers take longer to grade."""
    time.sleep(0.002 * len(text))
    score = 1.0 if text.rstrip(". ").endswith(str(value)) else 0.0
    score += 0.2 * min(text.count("*"), 2)
    return score - 0.004 * len(text)


def grader_reward(completions, value, **kwargs):
    futures = [POOL.submit(grade, c[0]["content"], v) for c, v in zip(completions, value)]
    scores = []
    for future in as_completed(futures):
        scores.append(future.result())
    return scores


def format_reward(completions, **kwargs):
    return [0.5 if "####" in c[0]["content"] else 0.0 for c in completions]


rng = random.Random(5)
rows = []
for _ in range(32):
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    who, what = rng.choice(["Eve", "Finn", "Gus", "Hana"]), rng.choice(["books", "pens", "cards"])
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {
                    "role": "user",
                    "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?",
                },
            ],
            "value": a * b,
        }
    )

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.1,
)
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[grader_reward, format_reward],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
POOL.shutdown()
