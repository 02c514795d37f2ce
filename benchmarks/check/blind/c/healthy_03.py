"""Own optimizer groups, a multiplicative schedule, and a frozen embedding."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def factor(step):
    return min(1.0, (step + 1) / 3) * 0.98**step


def groups(model, lr):
    decay, plain = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        (decay if parameter.ndim > 1 else plain).append(parameter)
    return [
        {"params": decay, "lr": lr, "weight_decay": 0.05},
        {"params": plain, "lr": 4 * lr, "weight_decay": 0.0},
    ]


async def closeness(prompts, completions, answer, **kwargs):
    rewards = []
    for text, truth in zip(completions, answer):
        head = text.split(">>")[0].strip()
        rewards.append(1.0 - min(1.0, abs(int(head) - truth) / 50) if head.isdecimal() else -1.0)
    return rewards


def ends_early(completions, **kwargs):
    return [0.5 if len(text) < 20 else 0.0 for text in completions]


def main():
    rng = random.Random(55)
    rows = []
    for _ in range(40):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        rows.append({"prompt": f"There are <<{a}*{b}=", "answer": a * b})
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.get_input_embeddings().weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(groups(model, 5e-5), betas=(0.9, 0.98), eps=1e-7)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        reward_funcs=[closeness, ends_early],
        train_dataset=Dataset.from_list(rows),
        optimizers=(optimizer, scheduler),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=20,
            loss_type="grpo",
            scale_rewards="none",
            max_grad_norm=0.5,
            temperature=1.3,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
