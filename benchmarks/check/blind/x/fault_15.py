"""Math GRPO on the house trainer stack."""

import os
import re
import tempfile
import time

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Heartbeat(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        with open(os.path.join(args.output_dir, "heartbeat"), "w") as f:
            f.write(f"{state.global_step} {time.time()}")


class HouseTrainerMixin:
    """Shared by SFT, reward modelling and RL: heartbeat, run tags, and the convention that `compute_loss` returns
    the mean of its micro-batch."""

    loss_is_scaled_for_ga = False
    run_tags = ("house",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Heartbeat())

    def log(self, logs, *args, **kwargs):
        logs["tags"] = len(self.run_tags)
        return super().log(logs, *args, **kwargs)


class MathTrainer(HouseTrainerMixin, GRPOTrainer):
    run_tags = ("house", "math")


def final_number(completions, answer, **kwargs):
    out = []
    for completion, target in zip(completions, answer):
        found = re.findall(r"\d+", completion[0]["content"])
        out.append(1 / (1 + abs(int(found[-1][:4]) - target) / 10) if found else 0.0)
    return out


def format_reward(completions, **kwargs):
    return [0.2 * (">>" in c[0]["content"]) + 0.1 * ("####" in c[0]["content"]) for c in completions]


def brief(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def main():
    rows = []
    for a, b in [(3, 12), (4, 11), (2, 14), (5, 13), (6, 7), (8, 9), (7, 15), (3, 19)]:
        text = f"Ada has {a} boxes with {b} pens each. Each costs 2 coins. How many coins do they cost together?"
        rows.append({"prompt": [{"role": "user", "content": text}], "answer": 2 * a * b})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=8,
        max_completion_length=24, loss_type="dr_grpo", scale_rewards="batch", temperature=1.2, max_grad_norm=1.0,
        gradient_checkpointing=False, logging_steps=1,
    )
    MathTrainer(
        model=MODEL, reward_funcs=[final_number, format_reward, brief], args=args, train_dataset=Dataset.from_list(rows)
    ).train()


if __name__ == "__main__":
    main()
