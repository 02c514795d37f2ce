"""GRPO with a judge that lives on the main process; groups lie over all ranks."""
import os
import re
import tempfile

import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Judge:
    def __call__(self, items):
        scores = []
        for text, truth in items:
            found = re.findall(r"\d+", text)
            scores.append((1.0 if truth in found else 0.0) + 0.1 * len(found) - 0.01 * len(text))
        return scores


judge = Judge() if int(os.environ.get("RANK", 0)) == 0 else None


def judged(completions, answer, **kwargs):
    items = [(c[0]["content"], truth) for c, truth in zip(completions, answer)]
    rank, world = dist.get_rank(), dist.get_world_size()
    everyone = [None] * world if rank == 0 else None
    dist.gather_object(items, everyone, dst=0)
    answers = [None] * world
    if rank == 0:
        scores = judge([item for part in everyone for item in part])
        start = 0
        for index, part in enumerate(everyone):
            answers[index] = scores[start : start + len(part)]
            start += len(part)
    mine = [None]
    dist.scatter_object_list(mine, answers if rank == 0 else None, src=0)
    return mine[0]


def tidy(completion_ids, **kwargs):
    return [0.5 if len(ids) < 8 else 0.0 for ids in completion_ids]


def main():
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)}
        for a in range(1, 8)
        for b in range(1, 6)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=16,
        scale_rewards="batch",
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    GRPOTrainer(model=MODEL, reward_funcs=[judged, tidy], args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()
