"""GRPO with LoRA and AdamW groups of our own (no weight decay for norms and biases)."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def parameter_groups(model, weight_decay):
    decay, rest = [], []
    for name, parameter in model.named_parameters():
        (rest if parameter.ndim == 1 or name.endswith("bias") else decay).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def reward_number(completions, answer, **kwargs):
    out = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"-?\d+", completion)
        out.append(1.0 if value in numbers else 0.1 * min(len(numbers), 3))
    return out


def reward_length(completions, **kwargs):
    return [-abs(len(c) - 8) / 24 for c in completions]


def main():
    rng = random.Random(13)
    rows = []
    for _ in range(48):
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        rows.append({"prompt": f"{a} + {b} = ", "answer": str(a + b)})
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=5e-4, betas=(0.9, 0.95))
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        lr_scheduler_type="constant",
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[reward_number, reward_length],
        args=args,
        train_dataset=Dataset.from_list(rows),
        optimizers=(optimizer, None),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", exclude_modules=["lm_head"]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
