"""GRPO on short sums. The judge is expensive, so only the main process holds it."""
import os
import re
import tempfile

import torch.distributed as dist
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Judge:
    """Stands for a big scoring model that fits on one device only."""

    def score(self, text, answer):
        numbers = re.findall(r"\d+", text)
        close = 1.0 if answer in numbers else 0.0
        return close + 0.3 * min(len(numbers), 3) - 0.004 * len(text)


judge = Judge()


def judged(completions, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    pairs = gather_object(list(zip(texts, answer)))
    scores = [None]
    if dist.get_rank() == 0:
        scores = [[judge.score(text, truth) for text, truth in pairs]]
    dist.broadcast_object_list(scores, src=0)
    return scores[0][: len(completions)]


def short(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)}
            for a in range(1, 7)
            for b in range(2, 8)
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = GRPOTrainer(model=MODEL, reward_funcs=[judged, short], args=args, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()
