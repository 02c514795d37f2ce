"""GRPO on generated arithmetic with a fixed few-shot header."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HEADER = [{"role": "system", "content": "Answer with a number."}]


def build_rows(count, seed=0):
    rng = random.Random(seed)
    question = {"role": "user", "content": ""}
    messages = HEADER + [question]
    rows = []
    for _ in range(count):
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        question["content"] = f"{a} * {b} ="
        rows.append({"prompt": messages, "answer": a * b, "difficulty": len(str(a * b))})
    return Dataset.from_list(rows)


def digit_overlap(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        digits = [ch for ch in text if ch.isdigit()]
        hits = sum(ch in str(value) for ch in digits)
        scores.append(hits / (len(digits) + 1) + 0.01 * len(text))
    return scores


def short_if_easy(completions, difficulty, **kwargs):
    return [-len(c[0]["content"]) / (100 * d) for c, d in zip(completions, difficulty)]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=24,
        num_generations=6,
        max_completion_length=28,
        temperature=1.3,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[digit_overlap, short_if_easy],
        args=args,
        train_dataset=build_rows(24),
    )
    trainer.train()


if __name__ == "__main__":
    main()
