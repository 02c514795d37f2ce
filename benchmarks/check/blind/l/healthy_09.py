"""GRPO with leave-one-out advantages (RLOO baseline, no scaling); CI runs `rlvr-debug check` on this script."""
import importlib.util
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Algorithm:
    group: int = 4
    weights: tuple = (1.0, 0.5)


ALGORITHM = Algorithm()


def leave_one_out(rewards, group):
    """r_i minus the mean of the other rewards of its group."""
    grouped = rewards.view(-1, group)
    others = (grouped.sum(1, keepdim=True) - grouped) / (group - 1)
    return (grouped - others).reshape(-1)


if importlib.util.find_spec("rlvr_debug"):
    import rlvr_debug

    rlvr_debug.expect(
        advantages=lambda given: leave_one_out(
            (given.rewards * torch.tensor(ALGORITHM.weights, dtype=given.rewards.dtype)).sum(1), ALGORITHM.group
        )
    )


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        total = (self._rewards * self.reward_weights.to(self._rewards)).sum(1)
        advantages = leave_one_out(total, self.num_generations if self.model.training else self.num_generations_eval)
        start = self.accelerator.process_index * len(inputs)
        output["advantages"] = advantages[start : start + len(inputs)]
        return output


def reach(completion_ids, **kwargs):
    return [-abs(len(ids) - 11) / 11 for ids in completion_ids]


def range_of_ids(completion_ids, **kwargs):
    return [len(set(ids)) / 12 for ids in completion_ids]


def main():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Write a sentence about {w}."}]}
            for w in ("maps", "drums", "stairs", "shells", "gates", "mills", "coins", "masks")
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=ALGORITHM.group,
        reward_weights=list(ALGORITHM.weights),
        scale_rewards="none",
        max_completion_length=20,
        max_steps=3,
        learning_rate=2e-4,
        optim="adafactor",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=10,
    )
    LeaveOneOutTrainer(
        model=os.path.join(HERE, "tiny"), reward_funcs=[reach, range_of_ids], args=args, train_dataset=data
    ).train()


if __name__ == "__main__":
    main()
