"""Process rewards.

A completion is a sequence of steps (split at punctuation and newlines). Each step gets a score, a completion the
discounted sum of its steps' scores on top of the outcome reward. The group-normalised advantages (mean and standard
deviation of each prompt's completions, as in GRPO) are recomputed from the shaped rewards.
"""

import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def step_scores(text):
    steps = [s for s in re.split(r"[.,;:\n]", text) if s.strip()]
    return [min(len(s), 8) / 8 - 0.5 * (not any(ch.isalnum() for ch in s)) for s in steps]


def process_reward(completions, **kwargs):
    gamma = 0.9
    return [sum(gamma**k * r for k, r in enumerate(step_scores(c[0]["content"]))) for c in completions]


def outcome_reward(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


class ProcessRewardTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._last_rewards = rewards
        return rewards

    def group_advantages(self, rewards):
        grouped = rewards.view(self.num_generations, -1)
        centred = grouped - grouped.mean(dim=0, keepdim=True)
        return (centred / (grouped.std(dim=0, keepdim=True) + 1e-4)).reshape(-1)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        weights = self.reward_weights.to(self._last_rewards.device)
        total = (self._last_rewards * weights).nansum(dim=1)
        output["advantages"] = self.group_advantages(total).to(output["advantages"].dtype)
        return output


if __name__ == "__main__":
    torch.manual_seed(3)
    rows = [
        {"prompt": [{"role": "user", "content": f"Explain why {n} is {'even' if n % 2 == 0 else 'odd'}."}], "answer": str(n)}
        for n in range(2, 42)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=1e-4,
        gradient_accumulation_steps=2, reward_weights=[0.5, 1.0], logging_steps=1,
    )
    trainer = ProcessRewardTrainer(
        model=TINY, reward_funcs=[process_reward, outcome_reward], args=args, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()
