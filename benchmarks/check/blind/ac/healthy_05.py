"""LoRA GRPO with a KL to the base model, and graders behind a (simulated) network."""
import asyncio
import os
import tempfile
import zlib

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Grader:
    """A grader with a bounded number of requests in flight."""

    def __init__(self, limit):
        self.limit = limit

    async def grade(self, semaphore, row, text, letters):
        async with semaphore:
            await asyncio.sleep((zlib.crc32(text.encode()) % 7) / 1000)
            return row, sum(ch in letters for ch in text) / (len(text) + 5) + 0.005 * len(text)


GRADER = Grader(limit=5)


async def letter_grade(completions, letters, **kwargs):
    semaphore = asyncio.Semaphore(GRADER.limit)
    tasks = [
        asyncio.create_task(GRADER.grade(semaphore, row, completion[0]["content"], wanted))
        for row, (completion, wanted) in enumerate(zip(completions, letters))
    ]
    scores = [0.0] * len(tasks)
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            row, value = task.result()
            scores[row] = value
    return scores


async def math_grade(completions, kind, **kwargs):
    await asyncio.sleep(0.001)
    return [
        sum(ch.isdigit() for ch in c[0]["content"]) / 8 if k == "math" else None for c, k in zip(completions, kind)
    ]


def main():
    rows = []
    for n, question in enumerate(["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 words"] * 3):
        kind = "math" if any(ch.isdigit() for ch in question) else "text"
        rows.append(
            {"prompt": [{"role": "user", "content": question}], "kind": kind, "letters": ["oe", "tn", "cis"][n % 3]}
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        beta=0.05,
        temperature=1.2,
        learning_rate=1e-3,
        reward_weights=[1.0, 0.4],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[letter_grade, math_grade],
        args=args,
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0),
    )
    trainer.train()


if __name__ == "__main__":
    main()
