"""RLOO: the baseline of a completion is the mean reward of the others of its group, without scaling."""

import os
import tempfile

import rlvr_debug
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(rewards):
    groups = rewards.view(-1, GROUP)
    others = (groups.sum(1, keepdim=True) - groups) / (GROUP - 1)
    return (groups - others).flatten()


rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


class RlooTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._last_rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._last_rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        advantages = leave_one_out(self._last_rewards.sum(1))
        rank, rows = self.accelerator.process_index, len(inputs)
        batch["advantages"] = advantages[rank * rows : (rank + 1) * rows]
        self._metrics["train"]["advantages/abs"].append(advantages.abs().mean().item())
        return batch


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def length(completion_ids, **kwargs):
    return [-abs(len(ids) - 12) / 24 for ids in completion_ids]


def main():
    torch.set_num_threads(1)
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Guess a number near {i * 9}."}] for i in range(1, 9)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=GROUP,
        scale_rewards="none", loss_type="grpo", max_completion_length=24, temperature=1.2,
        gradient_checkpointing=False, logging_steps=1,
    )
    RlooTrainer(model=MODEL, reward_funcs=[digits, length], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
