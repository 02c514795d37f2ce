"""GRPO with a (simulated) remote judge that is queried concurrently, plus a local length term."""
import asyncio
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class JudgeClient:
    """Stands in for an HTTP judge: the longer the text, the longer it takes."""

    def __init__(self, limit=64):
        self.limit = limit

    async def score(self, question, text):
        await asyncio.sleep(0.001 + 0.002 * len(text))
        if not text:
            return 0.0
        printable = sum(c.isalnum() for c in text) / len(text)
        return printable + 0.3 * len(set(text)) / len(text)


judge = JudgeClient()


async def judged_quality(prompts, completions, **kwargs):
    requests = [
        asyncio.create_task(judge.score(prompt[-1]["content"], completion[0]["content"]))
        for prompt, completion in zip(prompts, completions)
    ]
    scores = []
    for finished in asyncio.as_completed(requests):
        scores.append(await finished)
    return scores


def short(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def make_dataset():
    subjects = ["moss", "salt", "wind", "iron", "silk", "corn", "jazz", "lava", "mint", "opal"]
    asks = ["Define", "Praise", "Question", "Summarize"]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"{a} {s}."}]} for s in subjects for a in asks])


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=1e-4,
        per_device_train_batch_size=12,
        num_generations=6,
        max_completion_length=20,
        reward_weights=[1.0, 0.2],
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=[judged_quality, short],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
