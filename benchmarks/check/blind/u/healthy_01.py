"""RLOO advantages in a GRPO trainer.

The baseline of a completion is the mean reward of the other completions of its group, and nothing is scaled by a
standard deviation. The algorithm is declared to the check.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

try:
    import rlvr_debug
except ImportError:  # only needed under the check
    rlvr_debug = None

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
G = 4


def leave_one_out(rewards):
    groups = rewards.reshape(-1, G)
    others = (groups.sum(1)[:, None] - groups) / (G - 1)
    return (groups - others).reshape(-1)


if rlvr_debug is not None:
    rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


class RlooTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = leave_one_out(self._rewards.sum(1))
        return output


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 20 for ids in completion_ids]


def plain(completions, **kwargs):
    return [0.5 * c[0]["content"].isascii() for c in completions]


if __name__ == "__main__":
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Name {n} birds of the forest."}] for n in range(2, 34)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=G, max_completion_length=20, learning_rate=5e-5,
        scale_rewards="none", logging_steps=1,
    )
    RlooTrainer(model=TINY, reward_funcs=[distinct, plain], args=args, train_dataset=data).train()
