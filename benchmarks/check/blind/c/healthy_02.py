"""Prompts rendered in advance, pad token equal to the end token, LoRA, and rewards that may be missing."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.eos_token
tokenizer.padding_side = "right"


def render(row):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
    return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)}


def last_number(text):
    digits = "".join(ch if ch.isdigit() else " " for ch in text).split()
    return int(digits[-1]) if digits else None


def accuracy(completions, answer, **kwargs):
    return [1.0 if last_number(text) == truth else 0.0 for text, truth in zip(completions, answer)]


def closeness(completions, answer, **kwargs):
    values = []
    for text, truth in zip(completions, answer):
        number = last_number(text)
        values.append(None if number is None else -min(1.0, abs(number - truth) / truth))
    return values


def token_cost(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


rng = random.Random(25)
rows = []
for _ in range(48):
    a, b = rng.randint(2, 15), rng.randint(2, 9)
    rows.append({"question": f"Hana has {a} boxes with {b} stamps each. How many stamps does Hana have?", "answer": a * b})

trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
    processing_class=tokenizer,
    reward_funcs=[accuracy, closeness, token_cost],
    train_dataset=Dataset.from_list(rows).map(render).remove_columns("question"),
    peft_config=LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"
    ),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        learning_rate=2e-4,
        beta=0.05,
        loss_type="bnpo",
        reward_weights=[1.0, 0.5, 1.0],
        gradient_checkpointing=True,
        mask_truncated_completions=True,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    ),
)
trainer.train()
