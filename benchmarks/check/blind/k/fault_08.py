import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class LeaveOneOutTrainer(GRPOTrainer):
    """GRPO with a leave-one-out baseline (RLOO) and no division by the standard deviation."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._last_total = (rewards * self.reward_weights).nansum(1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        k = self.num_generations
        grouped = self._last_total.view(k, -1)
        others = (grouped.sum(0, keepdim=True) - grouped) / (k - 1)
        batch["advantages"] = (grouped - others).reshape(-1)
        return batch


def reward_digits(completions, weight, **kwargs):
    return [w * sum(ch.isdigit() for ch in c[0]["content"]) / 8 for c, w in zip(completions, weight)]


def reward_length(completions, completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


tasks = []
for i in range(48):
    tasks.append({"prompt": [{"role": "user", "content": f"{i} * 3 ="}], "weight": 1.0 + i % 5})

trainer = LeaveOneOutTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=[reward_digits, reward_length],
    train_dataset=Dataset.from_list(tasks),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        scale_rewards=False,
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=30,
        learning_rate=1e-4,
        max_steps=4,
        max_grad_norm=0.5,
        reward_weights=[1.0, 0.3],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    ),
)
trainer.train()
