"""Memory-saving full fine-tuning.

The whole model is held in bfloat16, with GRPO's usual learning rate of 1e-6, a short cosine schedule, with two
micro-batches per step.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build_rows():
    rows = []
    for start in range(2, 34):
        step = 1 + start % 3
        series = [start + step * k for k in range(4)]
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Continue: {', '.join(map(str, series))}"}],
                "next": str(start + 4 * step),
            }
        )
    return Dataset.from_list(rows)


def hit(completions, next, **kwargs):  # noqa: A002
    return [float(n in c[0]["content"]) for c, n in zip(completions, next)]


def mostly_digits(completions, **kwargs):
    out = []
    for c in completions:
        text = c[0]["content"]
        out.append(sum(ch.isdigit() for ch in text) / max(len(text), 1))
    return out


def early(completion_ids, **kwargs):
    return [-len(ids) / 64 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    max_steps=3,
    model_init_kwargs={"dtype": "bfloat16"},
    bf16=True,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=16,
    learning_rate=1e-6,
    lr_scheduler_type="cosine",
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=TINY, reward_funcs=[hit, mostly_digits, early], args=args, train_dataset=build_rows()
)
trainer.train()
