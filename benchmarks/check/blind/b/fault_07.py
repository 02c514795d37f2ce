import math
import os
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.realpath(__file__)), "tiny")
PEAK_LR, MIN_LR, WARMUP, TOTAL = 2e-5, 2e-6, 1, 4


def lr_at(step: int) -> float:
    """linear warmup, then cosine from PEAK_LR to MIN_LR"""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / (WARMUP + 1)
    t = (step - WARMUP) / max(1, TOTAL - WARMUP)
    return MIN_LR + 0.5 * (PEAK_LR - MIN_LR) * (1 + math.cos(math.pi * t))


def reward_len_band(completions, **kwargs):
    return [-abs(len(c) - 6) / 6.0 for c in completions]


model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
scheduler = LambdaLR(optimizer, lr_lambda=lr_at)

trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward_len_band,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=TOTAL,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"{k} + {k + 1} =" for k in range(1, 33)]}),
    optimizers=(optimizer, scheduler),
)
trainer.train()
