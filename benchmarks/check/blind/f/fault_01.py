"""GRPO on small multiplication problems, with per-group statistics in the logs."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
NAMES = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]


def make_dataset():
    rows = []
    for i, name in enumerate(NAMES):
        for j in (3, 4):
            boxes, each = j, 2 + i
            question = f"{name} has {boxes} boxes with {each} apples each. How many apples does {name} have?"
            rows.append({
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(boxes * each),
            })
    return Dataset.from_list(rows)


def accuracy(completions, answer, **kwargs):
    out = []
    for completion, gold in zip(completions, answer):
        found = re.search(r"#### (\d+)", completion[0]["content"])
        out.append(1.0 if found and found.group(1) == gold else 0.0)
    return out


def brevity(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


class GroupStatsTrainer(GRPOTrainer):
    """Keeps the rewards, normalizes them per group and logs the spread of each group."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        weights = self.reward_weights.to(self._rewards_per_func.device)
        rewards = (self._rewards_per_func * weights).nansum(dim=1)
        grouped = rewards.view(self.num_generations, -1)
        centered = grouped - grouped.mean(dim=0, keepdim=True)
        spread = grouped.std(dim=0, keepdim=True)
        output["advantages"] = (centered / (spread + 1e-4)).view(-1)
        self._metrics["train"]["group_std"].append(spread.mean().item())
        return output


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    logging_steps=1,
    learning_rate=1e-5,
    per_device_train_batch_size=16,
    num_generations=4,
    max_completion_length=24,
)
trainer = GroupStatsTrainer(model=MODEL, reward_funcs=[accuracy, brevity], args=args, train_dataset=make_dataset())
trainer.train()
