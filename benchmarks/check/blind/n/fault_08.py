"""GRPO whose advantages are computed in float64 and logged."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class RobustAdvantageTrainer(GRPOTrainer):
    """Same advantages as GRPO, in float64, because the rewards of some verifiers are large."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weights = self.reward_weights.to(rewards_per_func.device).unsqueeze(0)
        self._last_rewards = (rewards_per_func * weights).nansum(dim=1).double()
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        grouped = self._last_rewards.view(self.num_generations, -1)
        mean = grouped.mean(dim=0, keepdim=True)
        std = grouped.std(dim=0, keepdim=True)
        advantages = ((grouped - mean) / (std + 1e-4)).view(-1).float()

        start = self.accelerator.process_index * len(inputs)
        batch["advantages"] = advantages[start : start + len(inputs)].to(batch["completion_ids"].device)
        self._metrics["train"]["advantages/max"].append(advantages.max().item())
        self._metrics["train"]["advantages/min"].append(advantages.min().item())
        return batch


def near(completions, target, **kwargs):
    scores = []
    for completion, value in zip(completions, target):
        numbers = re.findall(r"\d+", completion[0]["content"])
        last = int(numbers[-1][:7]) if numbers else 0
        scores.append(-min(abs(value - last), 500) * 10.0)
    return scores


def long_enough(completions, **kwargs):
    return [min(len(c[0]["content"]), 80) * 1.0 for c in completions]


def main():
    rows = []
    for i, (who, what) in enumerate(zip(["Ada", "Cleo", "Eve", "Gus", "Ben", "Hana"], ["toys", "pens", "eggs"] * 2)):
        boxes, each = 12 + i, 11 + 2 * i
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{who} has {boxes} boxes with {each} {what} each. How many {what} does {who} have?"},
                ],
                "target": boxes * each,
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        reward_weights=[1.0, 0.5],
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = RobustAdvantageTrainer(MODEL, [near, long_enough], args, train_dataset=Dataset.from_list(rows))
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


if __name__ == "__main__":
    main()
