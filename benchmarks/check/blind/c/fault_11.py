"""GRPO for one-line answers: generation also stops at the end of a line."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]


def value_reward(completions, answer, **kwargs):
    rewards = []
    for completion, truth in zip(completions, answer):
        line = completion[0]["content"].split("\n")[0]
        numbers = re.findall(r"\d+", line)
        rewards.append(1.0 if numbers and int(numbers[-1]) == truth else 0.0)
    return rewards


def tidy_reward(completions, **kwargs):
    return [0.3 * c[0]["content"].strip().endswith(".") - 0.01 * len(c[0]["content"]) for c in completions]


def main():
    rng = random.Random(9)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"][-1]
    rows = []
    for _ in range(48):
        who, a, b = rng.choice(NAMES), rng.randint(8, 24), rng.randint(3, 9)
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} toys each. How many toys does {who} have?"},
                ],
                "answer": a * b,
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        generation_kwargs={"eos_token_id": [tokenizer.eos_token_id, newline]},
        temperature=1.6,
        learning_rate=2e-5,
        loss_type="bnpo",
        scale_rewards="batch",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=[value_reward, tidy_reward],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
