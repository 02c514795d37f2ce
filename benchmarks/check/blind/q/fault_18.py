"""GRPO on a LoRA adapter with LoRA+ (a larger learning rate for the B matrices)."""
import os
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
LR, RATIO = 5e-4, 16


def lora_plus(model, lr, ratio, weight_decay=0.0):
    slow, fast = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.endswith("lora_A.default.weight"):
            slow.append(parameter)
        elif name.endswith("lora_B.weight"):
            fast.append(parameter)
    groups = [
        {"params": slow, "lr": lr, "weight_decay": weight_decay},
        {"params": fast, "lr": lr * ratio, "weight_decay": weight_decay},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.95))


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
torch.manual_seed(1)
config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
model = get_peft_model(base, config)
optimizer = lora_plus(model, LR, RATIO)

rows = []
for i in range(24):
    a, b, what = 2 + i % 16, 2 + i % 7, ["apples", "books", "pens"][i % 3]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Dev has {a} boxes with {b} {what} each. How many {what} does Dev have?"},
            ],
            "noun": what,
        }
    )


def right_noun(completions, noun, **kwargs):
    return [float(word in c[0]["content"]) for c, word in zip(completions, noun)]


def hashes(completions, **kwargs):
    return [0.5 * ("####" in c[0]["content"]) - 0.01 * len(c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    lr_scheduler_type="constant",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[right_noun, hashes],
    args=args,
    train_dataset=Dataset.from_list(rows),
    optimizers=(optimizer, None),
)
trainer.train()
