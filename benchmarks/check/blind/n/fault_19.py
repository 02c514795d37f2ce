"""GRPO with LoRA and an optimizer of one's own."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, get_constant_schedule
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def build_optimizer(model, lr, weight_decay):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def correct(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(1.0 if numbers and numbers[-1] == str(value) else 0.0)
    return scores


def style(completions, **kwargs):
    return [0.02 * len(c[0]["content"]) + 0.1 * c[0]["content"].count("=") for c in completions]


def problems():
    rows = []
    for who, what in zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["toys", "eggs", "books", "pens", "cards", "shells"]):
        a, b = 10 + len(what), 10 + 2 * len(who)
        text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    return Dataset.from_list(rows)


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = build_optimizer(model, lr=1e-3, weight_decay=0.01)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-3,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[correct, style],
        args=args,
        train_dataset=problems(),
        processing_class=tokenizer,
        peft_config=lora,
        optimizers=(optimizer, get_constant_schedule(optimizer)),
    )
    trainer.train()


if __name__ == "__main__":
    main()
