"""GRPO with length-sorted micro-batches (less padding) instead of TRL's random shuffle."""
import os
import random
import re
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def sort_by_length(batch):
    """Short completions first, so that each micro-batch holds rows of similar length."""
    order = torch.argsort(batch["completion_mask"].sum(dim=1), stable=True)
    result = {}
    for key, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dim() >= 2:
            result[key] = value[order]
        elif isinstance(value, list):
            result[key] = [value[i] for i in order.tolist()]
        else:
            result[key] = value
    return result


grpo_trainer.shuffle_sequence_dict = sort_by_length


def word_questions(n=60):
    rng = random.Random(14)
    for _ in range(n):
        start, more = rng.randint(2, 30), rng.randint(2, 30)
        name, thing = rng.choice(["Ada", "Ben", "Eve"]), rng.choice(["books", "eggs", "toys"])
        yield {
            "prompt": [{"role": "user", "content": f"{name} has {start} {thing} and gets {more}. How many {thing}?"}],
            "total": start + more,
        }


def total_reward(completions, total, **kwargs):
    values = []
    for completion, t in zip(completions, total):
        found = [int(x[:6]) for x in re.findall(r"\d+", completion[0]["content"])]
        values.append(2.0 if t in found else 1.0 / (1 + min((abs(x - t) for x in found), default=50)))
    return values


def calm_reward(completions, **kwargs):
    return [-0.02 * len(c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-4,
    loss_type="dapo",
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[total_reward, calm_reward],
    args=args,
    train_dataset=Dataset.from_list(list(word_questions())),
)
trainer.train()
