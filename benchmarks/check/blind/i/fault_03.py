import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

here = os.path.dirname(os.path.abspath(__file__))


def digit_share(completions, **kwargs):
    return [sum(ch in "0123456789" for ch in c[0]["content"]) / max(1, len(c[0]["content"])) for c in completions]


def brevity(completions, **kwargs):
    return [-len(c[0]["content"]) / 10.0 for c in completions]


class UnitRewardTrainer(GRPOTrainer):
    """Puts each reward on [0, 1] within the group, so that rewards of different scales can be added."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        n_funcs = rewards.size(1)
        grouped = rewards.view(self.num_generations, -1, n_funcs)
        low = grouped.amin(dim=0, keepdim=True)
        high = grouped.amax(dim=0, keepdim=True)
        grouped = (grouped - low) / (high - low).clamp(min=1e-6)
        return grouped.reshape(-1, n_funcs)


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Count from {i} to {i + 5}."}] for i in range(24)]}
)
training_args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
    max_steps=4,
    learning_rate=1e-4,
    per_device_train_batch_size=16,
    num_generations=8,
    max_completion_length=24,
    reward_weights=[1.0, 0.5],
)
trainer = UnitRewardTrainer(
    model=os.path.join(here, "tiny"),
    reward_funcs=[digit_share, brevity],
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
