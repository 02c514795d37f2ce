"""Judge over the network: one request per completion, all at once, next to a cheap local reward."""
import asyncio
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


async def ask_judge(text, topic):
    """Stands in for the request to the judge; long texts take longer."""
    await asyncio.sleep(0.002 * len(set(text)))
    return len(set(text) & set(topic)) / len(set(topic)) + 0.01 * len(set(text))


async def judge(completions, topic, **kwargs):
    """Scores all completions concurrently."""
    tasks = [asyncio.ensure_future(ask_judge(c[0]["content"], t)) for c, t in zip(completions, topic)]
    scores = []
    for finished in asyncio.as_completed(tasks):
        scores.append(await finished)
    return scores


def ascii_only(completions, **kwargs):
    return [sum(ch.isascii() for ch in c[0]["content"]) / max(len(c[0]["content"]), 1) for c in completions]


def main():
    topics = ["music", "garden", "ocean", "winter", "bridge", "coffee", "planet", "silver"]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"A sentence on {t}, please."}], "topic": t} for t in topics]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=20,
        learning_rate=1e-4,
        reward_weights=[1.0, 0.5],
    )
    GRPOTrainer(model=TINY, reward_funcs=[judge, ascii_only], args=args, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
