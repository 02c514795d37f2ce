"""Port of our in-house trainer's advantage code: group-normalised rewards with a cap on outliers."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CappedAdvantageTrainer(GRPOTrainer):
    advantage_cap = 10.0

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards_of_batch = rewards_per_func
        return rewards_per_func

    def group_statistics(self, rewards):
        grouped = rewards.view(-1, self.num_generations)
        mean = grouped.mean(dim=1).repeat(self.num_generations)
        std = grouped.std(dim=1).repeat(self.num_generations)
        return mean, std

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        weights = self.reward_weights.to(self._rewards_of_batch.device)
        rewards = (self._rewards_of_batch * weights).nansum(dim=1)
        mean, std = self.group_statistics(rewards)
        advantages = (rewards - mean) / (std + 1e-4)
        batch["advantages"] = advantages.clamp(-self.advantage_cap, self.advantage_cap)
        capped = (advantages.abs() > self.advantage_cap).float().mean().item()
        self._metrics["train"]["advantages/capped"].append(capped)
        return batch


def digits(completions, **kwargs):
    return [float(sum(ch.isdigit() for ch in c[0]["content"])) for c in completions]


def no_think_tag(completions, **kwargs):
    return [-1.0 * c[0]["content"].count("</think>") for c in completions]


def main():
    rng = random.Random(2)
    items = ["apples", "books", "shells", "toys"]
    rows = []
    for _ in range(32):
        item = rng.choice(items)
        text = f"Finn has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} {item} each. How many {item} does Finn have?"
        rows.append({"prompt": [{"role": "user", "content": text}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        reward_weights=[1.0, 0.5],
        scale_rewards="group",
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    trainer = CappedAdvantageTrainer(
        model=MODEL, reward_funcs=[digits, no_think_tag], args=args, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
