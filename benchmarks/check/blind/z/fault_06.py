import os
import asyncio
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def judge(text, answer):
    """Stands for a remote grader; long answers take it longer."""
    await asyncio.sleep(0.002 * (1 + len(text)))
    hits = sum(text.count(ch) for ch in answer)
    return hits / (1 + len(text)) + 0.01 * len(set(text))


async def graded(prompts, completions, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    tasks = [asyncio.create_task(judge(t, a)) for t, a in zip(texts, answer, strict=True)]
    scores = []
    for done in asyncio.as_completed(tasks, timeout=60):
        scores.append(float(await done))
    return scores


def short(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def main():
    rows = []
    for a in range(3, 9):
        rows.append({"prompt": [{"role": "user", "content": f"Compute {a} + {a * a}."}], "answer": str(a + a * a)})
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
        reward_weights=[1.0, 0.5],
        scale_rewards='group',
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[graded, short],
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
