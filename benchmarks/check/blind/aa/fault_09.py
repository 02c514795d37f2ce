import os
import tempfile
from collections import defaultdict

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def accuracy(completions, answer, **kwargs):
    return [float(c[0]["content"].strip().endswith(str(a))) for c, a in zip(completions, answer)]


def numerals(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def soft_overlong(completion_ids, **kwargs):
    limit, cache = 28, 16
    out = []
    for ids in completion_ids:
        n = len(ids)
        out.append(0.0 if n <= limit - cache else (limit - cache - n) / cache)
    return out


class ShapedTrainer(GRPOTrainer):
    """Keeps a table of how much every term contributes to the total."""

    def __init__(self, *args, **kwargs):
        self.contributions = defaultdict(list)
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weighted = rewards * self.reward_weights.to(rewards.device)
        rewards = torch.nan_to_num(weighted)
        for name, column in zip(self.reward_func_names, rewards.T):
            self.contributions[name].append(column.abs().mean().item())
            self._metrics["train"][f"contribution/{name}"].append(column.mean().item())
        return rewards


rows = []
for i in range(36):
    a, b = 3 + i % 6, 2 + (5 * i) % 7
    thing = ["coins", "eggs", "stamps"][i % 3]
    rows.append({
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"There are {a} boxes with {b} {thing} each. How many {thing}?"},
        ],
        "answer": a * b,
    })

trainer = ShapedTrainer(
    model=TINY,
    reward_funcs=[accuracy, numerals, soft_overlong],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=28,
        learning_rate=2e-4,
        loss_type="dr_grpo",
        reward_weights=[2.0, 1.0, 0.3],
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
print({k: [round(x, 3) for x in v] for k, v in trainer.contributions.items()})
