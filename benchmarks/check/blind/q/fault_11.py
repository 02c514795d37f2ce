"""GRPO with a slowly moving reference (an average of the policy) for the KL term."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SlowReference(TrainerCallback):
    """After each step: reference <- keep * reference + (1 - keep) * policy."""

    def __init__(self, keep=0.99):
        self.keep = keep
        self.trainer = None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        reference = self.trainer.ref_model
        for slow, fast in zip(reference.parameters(), model.parameters()):
            slow.lerp_(fast, self.keep)


rows = []
things = ["stamps", "shells", "books", "apples"]
for i in range(24):
    a, b, what = 4 + i % 14, 2 + (i * 5) % 8, things[i % 4]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Cleo has {a} boxes with {b} {what} each. How many {what} does Cleo have?"},
            ],
            "answer": f"{a * b}",
        }
    )


def solved(completions, answer, **kwargs):
    return [1.0 if c[0]["content"].endswith(f" {gold}") else 0.0 for c, gold in zip(completions, answer)]


def digits(completions, **kwargs):
    out = []
    for completion in completions:
        text = completion[0]["content"]
        out.append(0.1 * sum(ch.isdigit() for ch in text) - 0.01 * len(text))
    return out


slow_reference = SlowReference(keep=0.99)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=2e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    beta=0.1,
)
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[solved, digits],
    args=args,
    train_dataset=Dataset.from_list(rows),
    callbacks=[slow_reference],
)
slow_reference.trainer = trainer
trainer.train()
