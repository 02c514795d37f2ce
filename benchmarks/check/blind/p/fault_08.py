"""GRPO with a pool of async judges."""
import asyncio
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
WORKERS = 16


async def judge(slots, question, answer):
    """Stands for a request to the judge; long answers take longer."""
    async with slots:
        await asyncio.sleep(0.002 * len(answer))
        return len(set(answer)) / 10 + answer.count("e") / 5 + 0.01 * len(question)


async def judged(prompts, completions, **kwargs):
    slots = asyncio.Semaphore(WORKERS)
    requests = [
        asyncio.create_task(judge(slots, prompt[-1]["content"], completion[0]["content"]))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    scores = []
    for finished in asyncio.as_completed(requests):
        scores.append(await finished)
    return scores


def main():
    subjects = ["the moon", "a cat", "old maps", "a violin", "the desert", "snow", "a spoon", "the law"]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Say something new about {s}."}] for s in subjects]}
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=28,
        temperature=1.2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = GRPOTrainer(model=MODEL, reward_funcs=[judged], args=config, train_dataset=dataset)
    trainer.train()


if __name__ == "__main__":
    main()
