import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, get_constant_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def build(path):
    policy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    head = [p for n, p in policy.named_parameters() if n.startswith(("lm_head", "model.embed_tokens"))]
    body = [p for n, p in policy.named_parameters() if not n.startswith(("lm_head", "model.embed_tokens"))]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": 3e-4}, {"params": head, "lr": 1e-4}], betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=1)
    return policy, optimizer, schedule


def reward(completions, **kwargs):
    return [c.count(" ") * 0.5 + len(set(c)) * 0.1 for c in completions]


def main():
    policy, optimizer, schedule = build(MODEL)
    print(f"{sum(p.numel() for p in policy.parameters()):,} parameters")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [f"Day {d}: we sailed " for d in range(1, 21)]}),
        optimizers=(optimizer, schedule),
    )
    trainer.train()


main()
