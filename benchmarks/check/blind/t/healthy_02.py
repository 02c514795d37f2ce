"""RLOO-style baseline: each reward minus the mean of the other rewards of its group, without scaling."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(rewards):
    grouped = rewards.view(-1, GROUP)
    others = (grouped.sum(dim=1).unsqueeze(1) - grouped) / (GROUP - 1)
    return (grouped - others).view(-1)


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._last_rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = leave_one_out(self._last_rewards.sum(1))
        return output


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c[0]["content"]) / 5 for c in completions]


def compact(completions, **kwargs):
    return [-0.05 * len(c[0]["content"].split()) for c in completions]


try:
    import rlvr_debug
except ImportError:  # only needed where the trainer is checked
    pass
else:
    rlvr_debug.expect(advantages=lambda given: leave_one_out(torch.as_tensor(given.rewards).sum(1)))

trainer = LeaveOneOutTrainer(
    model=TINY,
    reward_funcs=[vowels, compact],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=GROUP,
        max_completion_length=16,
        learning_rate=1e-4,
        loss_type="grpo",
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Song {k}"}]} for k in range(16)]
    ),
)
trainer.train()
