"""GDPO on a LoRA adapter: each reward normalized by itself, some rewards not applicable to some rows."""
import os
import re
import tempfile

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def solved(completions, answer, **kwargs):
    out = []
    for c, gold in zip(completions, answer):
        if gold is None:
            out.append(None)
        else:
            out.append(float(re.findall(r"\d+", c[0]["content"])[-1:] == [str(gold)]))
    return out


def short(completion_ids, **kwargs):
    return [1 - len(ids) / 24 for ids in completion_ids]


def names_item(completions, item, **kwargs):
    return [float(it in c[0]["content"]) for c, it in zip(completions, item)]


rows = []
for i, item in enumerate(["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]):
    for boxes in (2, 5):
        rows.append({
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Cleo has {boxes} boxes with {i + 3} {item} each. How many {item} does Cleo have?"},
            ],
            "answer": boxes * (i + 3) if i % 4 else None,
            "item": item,
        })

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[solved, short, names_item],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
        multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.25, 0.5],
        beta=0.02, learning_rate=2e-4, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=24, logging_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
    peft_config=LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", use_rslora=True, task_type="CAUSAL_LM"
    ),
)
trainer.train()
