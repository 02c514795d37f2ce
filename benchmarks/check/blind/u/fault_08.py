"""A judge behind an API as a reward.

The judge takes longer for longer texts; all rows are asked at the same time and the scores are gathered as the
answers come in.
"""

import asyncio
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Judge:
    """Stands for the remote judge: prefers texts with many vowels and few repeated letters."""

    def __init__(self, latency=0.004):
        self.latency = latency
        self.asked = 0

    async def score(self, question, text):
        self.asked += 1
        await asyncio.sleep(0.01 + self.latency * len(text))
        if not text:
            return 0.0
        vowels = sum(ch in "aeiouAEIOU" for ch in text) / len(text)
        repeated = sum(a == b for a, b in zip(text, text[1:])) / len(text)
        return vowels - 0.5 * repeated + 0.01 * len(text)


judge = Judge()


async def judged(prompts, completions, **kwargs):
    tasks = [
        asyncio.ensure_future(judge.score(p[-1]["content"], c[0]["content"])) for p, c in zip(prompts, completions)
    ]
    scores = []
    for finished in asyncio.as_completed(tasks):
        scores.append(await finished)
    return scores


def polite(completions, **kwargs):
    return [0.1 if "." in c[0]["content"] else 0.0 for c in completions]


data = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Tell me about the letter {c}."}] for c in "abcdefghijklmnopqrstuvwx"]}
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=20, learning_rate=5e-5, beta=0.01,
    logging_steps=1,
)
GRPOTrainer(model=TINY, reward_funcs=[judged, polite], args=args, train_dataset=data).train()
