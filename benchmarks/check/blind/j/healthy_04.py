"""RLOO-style baseline inside TRL's trainer: each row is compared with the mean of the other rows of its group."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def leave_one_out(rewards, group_size):
    grouped = rewards.view(-1, group_size)
    others = (grouped.sum(dim=1, keepdim=True) - grouped) / (group_size - 1)
    return (grouped - others).reshape(-1)


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        weights = self.reward_weights.to(per_function.device)
        self._last_total = (per_function * weights).nansum(dim=1)
        return per_function

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        size = self.num_generations if self.model.training else self.num_generations_eval
        advantages = leave_one_out(self._last_total, size)
        start = self.accelerator.process_index * len(inputs)
        batch["advantages"] = advantages[start : start + len(inputs)]
        return batch


def make_dataset():
    rng = random.Random(55)
    rows = []
    for _ in range(64):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        noun = rng.choice(["books", "stamps", "apples"])
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"Gus has {a} boxes with {b} {noun} each. How many {noun} does Gus have?"},
                ],
                "solution": str(a * b),
            }
        )
    return Dataset.from_list(rows)


def solved(completions, solution, **kwargs):
    return [1.0 if c[0]["content"].endswith(s) else 0.0 for c, s in zip(completions, solution)]


def rich_and_tidy(completions, **kwargs):
    return [0.02 * len(set(c[0]["content"])) - 0.1 * c[0]["content"].count("[") for c in completions]


def main():
    assert torch.allclose(leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4).sum(), torch.tensor(0.0), atol=1e-6)
    trainer = LeaveOneOutTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[solved, rich_and_tidy],
        train_dataset=make_dataset(),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            scale_rewards="none",
            loss_type="dr_grpo",
            per_device_train_batch_size=12,
            num_generations=6,
            max_completion_length=56,
            learning_rate=1e-4,
            max_steps=5,
            logging_steps=1,
            save_strategy="no",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
