import os
import asyncio
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def remote(text, letters):
    await asyncio.sleep(0.001 * (40 - min(len(text), 39)))
    return sum(text.count(ch) for ch in letters) / (1 + len(text))


async def match(completions, target, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return list(await asyncio.gather(*(remote(t, a) for t, a in zip(texts, target, strict=True))))


async def style(completions, kind, **kwargs):
    """Applies to open questions only."""
    slots = [None] * len(completions)

    async def fill(index, text):
        slots[index] = await remote(text, ".,;: ")

    jobs = [fill(i, c[0]["content"]) for i, (c, k) in enumerate(zip(completions, kind, strict=True)) if k == "open"]
    for job in asyncio.as_completed(jobs):
        await job
    return slots


def size(completion_ids, **kwargs):
    return [len(ids) / 24 for ids in completion_ids]


def main():
    rows = []
    for n in range(12):
        kind = "open" if n % 2 else "closed"
        text = f"Describe picture {n}." if n % 2 else f"How many corners has a shape with {n + 3} sides?"
        rows.append({"prompt": [{"role": "user", "content": text}], "target": str(n + 3) + "ae", "kind": kind})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        reward_weights=[1.0, 0.5, -0.2],
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[match, style, size],
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
