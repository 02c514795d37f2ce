"""RLOO-style advantages inside GRPO: the baseline of a row is the mean of the other rows of its group."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rlvr_debug

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
G = 4


def leave_one_out(rewards):
    groups = rewards.view(-1, G)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (G - 1)
    return (groups - others).reshape(-1)


rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        self._rewards_now = super()._calculate_rewards(*args, **kwargs)
        return self._rewards_now

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch["advantages"] = leave_one_out(self._rewards_now.sum(1))
        return batch


rows = []
for i in range(32):
    a, b, what = 2 + (i * 7) % 18, 2 + (i * 3) % 8, ["eggs", "cards", "shells"][i % 3]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Finn has {a} boxes with {b} {what} each. How many {what} does Finn have?"},
            ],
            "gold": str(a * b),
        }
    )


def reward(completions, gold, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [float(g in t) + 0.2 * ("####" in t) - 0.01 * len(t) for t, g in zip(texts, gold)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.1,
)
trainer = LeaveOneOutTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
