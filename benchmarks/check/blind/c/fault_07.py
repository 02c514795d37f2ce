"""GRPO with an own cosine schedule with warm-up, and a callback that reports the rate."""
import math
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS, WARMUP = 12, 2


def factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, STEPS - WARMUP)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class Schedule(TrainerCallback):
    def __init__(self):
        self.history = []

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.step()
        self.history.append((state.global_step, lr_scheduler.get_last_lr()[0]))
        return control

    def on_train_end(self, args, state, control, **kwargs):
        for step, lr in self.history:
            print(f"step {step}: lr {lr:.2e}")


def score(prompts, completions, total, **kwargs):
    result = []
    for text, truth in zip(completions, total):
        found = [int(x) for x in re.findall(r"\d{1,6}", text)]
        near = max((1.0 / (1 + abs(x - truth)) for x in found), default=0.0)
        result.append(near - 0.01 * len(text))
    return result


rng = random.Random(17)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
rows = []
for _ in range(64):
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    rows.append({"prompt": f"Ada has {a} apples. Ben has {b} apples. How many together? There are <<", "total": a + b})

model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=score,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        learning_rate=4e-5,
        loss_type="bnpo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
    train_dataset=Dataset.from_list(rows),
    optimizers=(optimizer, scheduler),
    callbacks=[Schedule()],
)
trainer.train()
