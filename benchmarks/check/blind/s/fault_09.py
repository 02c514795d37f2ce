"""GRPO with advantages in double precision.

Our rewards are large (they are counts with a big constant) and differ only in the last digits. Single precision loses
these differences, so the subclass recomputes mean and standard deviation of each group in float64.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class DoubleAdvantageTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards64 = (rewards.double() * self.reward_weights.double()).sum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = self.group_advantages(self._rewards64).float()
        return output

    def group_advantages(self, rewards):
        grouped = rewards.view(self.num_generations, -1)
        mean = grouped.mean(dim=0).repeat_interleave(self.num_generations)
        std = grouped.std(dim=0).repeat_interleave(self.num_generations)
        return (rewards - mean) / (std + 1e-4)


def count_reward(completions, bonus, **kwargs):
    """Number of characters, in thousandths, on top of the bonus of the task."""
    return [b + len(set(text)) + len(text) / 1000 for text, b in zip(completions, bonus)]


def main():
    tasks = [
        ("List fruit: ", 100.0),
        ("List tools: ", 200.0),
        ("List birds: ", 300.0),
        ("List trees: ", 400.0),
        ("List rivers: ", 500.0),
        ("List metals: ", 600.0),
    ]
    dataset = Dataset.from_dict({"prompt": [t[0] for t in tasks], "bonus": [t[1] for t in tasks]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = DoubleAdvantageTrainer(model=MODEL, reward_funcs=count_reward, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
