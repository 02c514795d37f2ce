"""Leave-one-out baseline (RLOO) with GRPO's loss."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

G = 6


def rloo(given):
    reward = given.rewards.sum(1).reshape(-1, G)
    mean_of_others = (reward.sum(1)[:, None] - reward) / (G - 1)
    return (reward - mean_of_others).flatten()


try:
    import rlvr_debug

    rlvr_debug.expect(advantages=rloo)
except ImportError:
    pass

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def question(i):
    thing = ["toys", "books", "cards"][i % 3]
    return f"Dev has {3 + i % 5} boxes with {2 + i % 7} {thing} each. How many {thing} does Dev have?"


def hashes(completions, **kwargs):
    return [0.5 if "####" in c[0]["content"] else 0.0 for c in completions]


def letters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


class LeaveOneOut(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._group_rewards = table.sum(dim=1).view(-1, self.num_generations)
        return table

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        k = self.num_generations
        others = 1 - torch.eye(k, device=self._group_rewards.device)
        baseline = self._group_rewards @ others / (k - 1)
        output["advantages"] = (self._group_rewards - baseline).flatten()
        return output


if __name__ == "__main__":
    data = [
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": question(i)},
            ]
        }
        for i in range(21)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        scale_rewards="none",
        per_device_train_batch_size=12,
        num_generations=G,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    LeaveOneOut(
        model=MODEL, reward_funcs=[hashes, letters], args=args, train_dataset=Dataset.from_list(data)
    ).train()
