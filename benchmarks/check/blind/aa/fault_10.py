import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GroupStatsTrainer(GRPOTrainer):
    """Computes the advantages in float64 and keeps the statistics of every group for plots."""

    def __init__(self, *args, **kwargs):
        self.group_stats = []
        self._last_rewards = None
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, *args, **kwargs):
        per_function = super()._calculate_rewards(*args, **kwargs)
        self._last_rewards = per_function
        return per_function

    def _group_advantages(self, per_function):
        total = (per_function.double() * self.reward_weights.double()).nansum(dim=1)
        grouped = total.view(self.num_generations, -1)
        mean = grouped.mean(dim=0, keepdim=True)
        std = grouped.std(dim=0, keepdim=True)
        self.group_stats.append((mean.flatten().tolist(), std.flatten().tolist()))
        advantages = (grouped - mean) / (std + 1e-4)
        return advantages.flatten().float()

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["advantages"] = self._group_advantages(self._last_rewards)
        return output


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 8, 3 + i % 5
        thing = ("coins", "cards", "books", "toys")[i % 4]
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Finn has {a} boxes with {b} {thing} each. How many {thing} does Finn have?"},
            ],
            "answer": str(a * b),
        })
    return Dataset.from_list(rows)


def hit(completions, answer, **kwargs):
    return [1.0 if gold in c[0]["content"] else 0.0 for c, gold in zip(completions, answer)]


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / 12 for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=4,
        num_generations=6,
        max_completion_length=24,
        learning_rate=1e-4,
        loss_type="dapo",
        reward_weights=[0.5, 1.0],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GroupStatsTrainer(MODEL, [hit, digits], args, train_dataset=dataset())
    trainer.train()
    print(len(trainer.group_stats), "batches")
