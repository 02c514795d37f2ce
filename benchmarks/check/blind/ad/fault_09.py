"""The judge is slow on mixed lengths: score rows in order of length, then put the scores back."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def text(i):
    item = ["cards", "pens", "shells"][i % 3]
    base = f"Ben has {2 + i % 6} boxes with {3 + i % 4} {item} each."
    if i % 3 == 1:
        return base + " Each costs 6 coins. How many coins do they cost together?"
    return base + f" How many {item} does Ben have?"


def judge(completions, completion_ids, weight, **kwargs):
    scores = []
    for message, ids, w in zip(completions, completion_ids, weight):
        content = message[0]["content"]
        scores.append(w * content.count("s") / 5 - 0.01 * len(ids) + 0.1 * len(set(content)))
    return scores


class BucketedRewards(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        lengths = torch.tensor([len(c[0]["content"]) for c in completions])
        order = torch.argsort(lengths, stable=True)
        pick = order.tolist()
        scored = super()._calculate_rewards(
            [inputs[i] for i in pick],
            [prompts[i] for i in pick],
            [completions[i] for i in pick],
            [completion_ids_list[i] for i in pick],
        )
        return scored[order.to(scored.device)]


def main():
    data = Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": text(i)},
                ],
                "weight": 1.0 if i % 2 else 0.5,
            }
            for i in range(24)
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=12,
        num_generations=6,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=7,
    )
    BucketedRewards(model=MODEL, reward_funcs=judge, args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
