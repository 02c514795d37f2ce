"""Leave-one-out advantages with a baseline shrunk to the batch's mean, declared to the check."""
import os
import re
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
GROUP = 4
SHRINK = 0.25


def shrunk_leave_one_out(rewards):
    """reward - ((1 - s) * mean of the group's others + s * mean of the batch)"""
    grouped = rewards.reshape(-1, GROUP)
    others = (grouped.sum(1)[:, None] - grouped) / (GROUP - 1)
    return (grouped - (1 - SHRINK) * others - SHRINK * rewards.mean()).reshape(-1)


rlvr_debug.expect(advantages=lambda given: shrunk_leave_one_out(given.rewards.sum(1)))


class ShrunkBaselineTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards_per_func.sum(dim=1)
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        advantages = shrunk_leave_one_out(self._rewards)
        start = self.accelerator.process_index * len(inputs)
        batch["advantages"] = advantages[start : start + len(inputs)]
        return batch


def exact(completions, answer, **kwargs):
    scores = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(1.0 if numbers and numbers[-1] == str(value) else 0.0)
    return scores


def size(completions, **kwargs):
    return [0.02 * len(c[0]["content"]) for c in completions]


def main():
    rows = []
    for i, (who, what) in enumerate(zip(["Gus", "Hana", "Ada", "Dev", "Eve", "Finn"], ["cards", "toys"] * 3)):
        a, b = 13 + i, 12 + i
        text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        rows.append(
            {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], "answer": a * b}
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=GROUP,
        max_completion_length=24,
        loss_type="dr_grpo",
        scale_rewards="none",
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = ShrunkBaselineTrainer(MODEL, [exact, size], args, train_dataset=Dataset.from_list(rows))
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


if __name__ == "__main__":
    main()
