import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEMS = [
    "Solve the problem step by step. End with #### and the number.",
    "Solve the problem step by step.",
    "End with #### and the number.",
    "Answer with one number.",
]
rng = random.Random(7)


def augment(batch):
    batch["prompt"] = [
        [{"role": "system", "content": rng.choice(SYSTEMS)}, {"role": "user", "content": question}]
        for question in batch["question"]
    ]
    return batch


rows = []
for name in ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"]:
    for a, b in [(2, 7), (3, 6), (4, 4), (5, 3)]:
        rows.append({
            "question": f"{name} has {a} boxes with {b} shells each. How many shells does {name} have?",
            "answer": str(a * b),
        })
dataset = Dataset.from_list(rows).with_transform(augment)


def contains_answer(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def tidy(completions, **kwargs):
    return [-0.005 * len(c[0]["content"]) for c in completions]


trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[contains_answer, tidy],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=6, learning_rate=1e-5, per_device_train_batch_size=12, num_generations=4,
        max_completion_length=24,
    ),
    train_dataset=dataset,
)
trainer.train()
