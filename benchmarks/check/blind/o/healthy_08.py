"""Leave-one-out advantages (RLOO) on top of TRL's sampler and a Dr. GRPO loss."""
import os
import random
import tempfile

import rlvr_debug
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
GROUP = 4


def leave_one_out(rewards):
    grouped = rewards.reshape(-1, GROUP)
    others = (grouped.sum(1)[:, None] - grouped) / (GROUP - 1)
    return (grouped - others).reshape(-1)


rlvr_debug.expect(advantages=lambda given: leave_one_out(given.rewards.sum(1)))


class RLOOAdvantageTrainer(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        self._per_function = super()._calculate_rewards(*args, **kwargs)
        return self._per_function

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch["advantages"] = leave_one_out(self._per_function.sum(1))
        self._metrics["train"]["advantages/abs"].append(batch["advantages"].abs().mean().item())
        return batch


def digits(completions, **kwargs):
    return [0.3 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


def short(completion_ids, **kwargs):
    return [-0.05 * len(ids) for ids in completion_ids]


def main():
    rng = random.Random(8)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Dev has {a} boxes with {b} toys each. How many toys does Dev have?"}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=GROUP,
        max_completion_length=24,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    RLOOAdvantageTrainer(
        model=MODEL, reward_funcs=[digits, short], args=args, train_dataset=Dataset.from_list(rows)
    ).train()


if __name__ == "__main__":
    main()
