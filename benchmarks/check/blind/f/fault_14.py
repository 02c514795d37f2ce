import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanGRPOTrainer(GRPOTrainer):
    """Does not keep a second model in memory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.ref_model is not None:
            self.ref_model = self.model


def solved(completions, answer, **kwargs):
    return [2.0 * (re.findall(r"\d+", c[0]["content"])[-1:] == [a]) for c, a in zip(completions, answer)]


def wording(completions, **kwargs):
    return [0.3 if c[0]["content"].startswith("There are") else 0.0 for c in completions]


def chars(completions, **kwargs):
    return [-len(c[0]["content"]) / 200 for c in completions]


rows = [
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Ada has {a} boxes with {b} apples each. How many apples does Ada have?"},
        ],
        "answer": str(a * b),
    }
    for a in (2, 4, 6, 8) for b in (2, 3, 5, 9)
]

trainer = LeanGRPOTrainer(
    model=MODEL,
    reward_funcs=[solved, wording, chars],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        beta=0.04,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
