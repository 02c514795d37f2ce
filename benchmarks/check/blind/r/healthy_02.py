"""Leave-one-out advantages (RLOO) on top of the GRPO loop.

Each completion is compared with the mean of the *other* completions for its prompt, without scaling by the standard
deviation. The change is declared, so that the check compares with it.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

try:
    import rlvr_debug
except ImportError:  # not installed on the training nodes
    rlvr_debug = None

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(scores, group=GROUP):
    grouped = scores.reshape(-1, group)
    others = (grouped.sum(1).reshape(-1, 1) - grouped) / (group - 1)
    return (grouped - others).reshape(-1)


if rlvr_debug is not None:
    rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


class LeaveOneOutTrainer(GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scores = rewards.sum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            start = self.accelerator.process_index * len(inputs)
            batch["advantages"] = leave_one_out(self._scores)[start:start + len(inputs)]
        return batch


def digits(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in texts]


def brief(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


def main():
    questions = [f"What is {a} times {b}?" for a, b in
                 [(2, 3), (4, 5), (7, 2), (9, 9), (11, 3), (6, 8), (12, 2), (5, 5), (3, 13), (8, 4)]]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="rloo-"), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=GROUP,
        max_completion_length=16, scale_rewards="none", learning_rate=5e-4, max_steps=3, logging_steps=1,
    )
    trainer = LeaveOneOutTrainer(model=MODEL, reward_funcs=[digits, brief], args=args, train_dataset=dataset)
    trainer.train()


if __name__ == "__main__":
    main()
