"""REINFORCE with the mean of the batch as baseline.

With many different prompts in a batch a group baseline has a high variance. This trainer keeps everything of GRPO but
the advantages, which are the rewards minus the mean reward of the batch.
"""

import os
import tempfile

import rlvr_debug
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def batch_baseline(given):
    rewards = given.rewards.sum(1)
    return rewards - rewards.mean()


rlvr_debug.expect(advantages=batch_baseline)


class BatchBaselineTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._batch_rewards = rewards.sum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = self._batch_rewards - self._batch_rewards.mean()
        rows = output["completion_ids"].size(0)
        start = self.accelerator.process_index * rows
        output["advantages"] = advantages[start : start + rows]
        return output


def sql_like(completions, **kwargs):
    """Starts like a query, ends with a semicolon, and is short."""
    rewards = []
    for text in completions:
        upper = text.upper().strip()
        reward = 0.5 * upper.startswith("SELECT") + 0.2 * upper.startswith("S") + 0.3 * upper.endswith(";")
        reward += 0.02 * len(set(text)) - len(text) / 50
        rewards.append(reward)
    return rewards


def main():
    asks = [
        "all users",
        "the number of orders",
        "the newest item",
        "prices above 10",
        "names that start with A",
        "visits of today",
        "the oldest user",
        "empty carts",
    ]
    dataset = Dataset.from_dict({"prompt": [f"-- SQL: {ask}\n" for ask in asks]})
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=16,
            max_steps=3,
            learning_rate=1e-4,
            scale_rewards="none",
            loss_type="dr_grpo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = BatchBaselineTrainer(model=MODEL, reward_funcs=sql_like, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
