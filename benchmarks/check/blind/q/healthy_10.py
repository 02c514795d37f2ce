"""Length-sorted micro-batches (less padding) with CISPO on plain-text few-shot prompts."""
import os
import random
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_module
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
EXAMPLES = [
    "Q: 3 boxes with 5 eggs\nA: There are <<3*5=15>>15 eggs.\n\n",
    "Q: 2 boxes with 9 toys\nA: There are <<2*9=18>>18 toys.\n\n",
    "Q: 6 boxes with 4 pens\nA: There are <<6*4=24>>24 pens.\n\n",
]


def sort_by_length(batch):
    """Stands in for TRL's shuffle: rows of similar length go into the same micro-batch."""
    order = torch.argsort(batch["completion_mask"].sum(dim=1), stable=True)
    rows = len(order)
    return {
        key: value[order] if isinstance(value, torch.Tensor) and value.dim() and len(value) == rows else value
        for key, value in batch.items()
    }


grpo_module.shuffle_sequence_dict = sort_by_length


rng = random.Random(21)
rows = []
for i in range(40):
    shots = "".join(rng.sample(EXAMPLES, i % 3))
    a, b, what = rng.randint(2, 20), rng.randint(2, 9), rng.choice(["cards", "books", "shells"])
    rows.append({"prompt": f"{shots}Q: {a} boxes with {b} {what}\nA:", "gold": f"{a}*{b}", "what": what})


def contains(completions, gold, what, **kwargs):
    return [float(g in c) + 0.3 * (w in c) + 0.01 * len(c) for c, g, w in zip(completions, gold, what)]


def repetition(completions, **kwargs):
    """Share of repeated characters; its weight is negative."""
    return [1.0 - len(set(c)) / max(len(c), 1) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=20,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    gradient_accumulation_steps=4,
    loss_type="cispo",
    epsilon_high=5.0,
    top_entropy_quantile=0.6,
    entropy_coef=0.01,
    multi_objective_aggregation="normalize_then_sum",
    reward_weights=[1.0, -0.5],
    shuffle_dataset=False,
)
trainer = GRPOTrainer(model=MODEL, reward_funcs=[contains, repetition], args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
