"""GRPO's loss with leave-one-out advantages (RLOO), declared to the checker."""
import os
import tempfile

import rlvr_debug
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(rewards):
    grouped = rewards.view(-1, GROUP)
    others = (grouped.sum(dim=1, keepdim=True) - grouped) / (GROUP - 1)
    return (grouped - others).view(-1)


rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


def make_dataset():
    jobs = ["baker", "pilot", "nurse", "miner", "judge", "clown", "sailor", "tailor"]
    asks = ["What does a {} do?", "Where does a {} work?", "Is a {} rich?", "A joke about a {}."]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": a.format(j)}]} for j in jobs for a in asks])


def letters(completions, **kwargs):
    return [0.1 * sum(ch.isalpha() for ch in c[0]["content"]) for c in completions]


def length(completion_ids, **kwargs):
    return [-0.05 * len(ids) for ids in completion_ids]


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._last_rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = leave_one_out((self._last_rewards * self.reward_weights).sum(1))
        start = self.accelerator.process_index * len(inputs)
        output["advantages"] = advantages[start : start + len(inputs)].to(output["advantages"])
        return output


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=16,
        num_generations=GROUP,
        max_completion_length=20,
        loss_type="grpo",
    )
    LeaveOneOutTrainer(
        model=TINY,
        reward_funcs=[letters, length],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    ).train()


if __name__ == "__main__":
    main()
