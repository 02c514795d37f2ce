import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS = 6

model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

no_decay = ("bias", "norm")
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(k in n for k in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(k in n for k in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=2e-5, betas=(0.9, 0.95))
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=STEPS)


def count_reward(completions, **kwargs):
    return [float(c[0]["content"].count("1")) - 0.01 * len(c[0]["content"]) for c in completions]


prompts = [
    [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"Ada has {a} boxes with {b} pens each. How many pens does Ada have?"},
    ]
    for a in range(2, 6) for b in range(4, 8)
]

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=STEPS,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=24,
    logging_steps=1,
)

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=count_reward,
    args=args,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    optimizers=(optimizer, scheduler),
)
trainer.train()
trainer.save_model(args.output_dir)
