"""GRPO with reward statistics per prompt for the dashboard.

Mean and standard deviation of each group are computed here, and the advantages are made from the same
tensors, so that the dashboard shows exactly what the update uses.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GroupStatsTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scores = (rewards_per_func * self.reward_weights.to(rewards_per_func.device)).nansum(dim=1)
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        training = self.model.training
        group = self.num_generations if training else self.num_generations_eval
        scores = self._scores.view(group, -1)
        mean = scores.mean(dim=0, keepdim=True)
        std = scores.std(dim=0, keepdim=True)
        advantages = ((scores - mean) / (std + 1e-4)).flatten()

        metrics = self._metrics["train" if training else "eval"]
        metrics["groups/mean_min"].append(mean.min().item())
        metrics["groups/mean_max"].append(mean.max().item())
        metrics["groups/std_max"].append(std.max().item())

        start = self.accelerator.process_index * len(inputs)
        batch["advantages"] = advantages[start:start + len(inputs)].to(torch.float32)
        return batch


def contains_digits(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [min(sum(c.isdigit() for c in text), 4) / 4 for text in texts]


def compact(completions, **kwargs):
    return [-len(completion[0]["content"]) / 100 for completion in completions]


if __name__ == "__main__":
    items = ["eggs in a box", "days in a week", "wheels on a cart", "hours in a day", "legs on a spider",
             "months in a year", "sides of a cube", "fingers on a hand", "minutes in an hour"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"How many {item}?"}] for item in items],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=12, num_generations=4, max_completion_length=16,
        reward_weights=[1.0, 0.5], learning_rate=3e-4, max_steps=3, logging_steps=1,
    )
    trainer = GroupStatsTrainer(
        model=MODEL, reward_funcs=[contains_digits, compact], args=args, train_dataset=dataset
    )
    trainer.train()
