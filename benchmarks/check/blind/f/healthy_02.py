"""Dr. GRPO with Adafactor, a moving reference (TR-DPO) and cosine restarts."""
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class NearMiss:
    """A callable object as a reward: 1 for the right number, less the farther it is."""

    __name__ = "near_miss"

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, answer, **kwargs):
        scores = []
        for c, gold in zip(completions, answer):
            numbers = re.findall(r"\d+", c[0]["content"])
            near = self.scale / (self.scale + abs(int(numbers[-1][:6]) - gold)) if numbers else 0.0
            scores.append(near - 0.01 * len(c[0]["content"]))
        return scores


data = {
    "prompt": [
        [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?"},
        ]
        for a in range(2, 6) for b in range(5, 10)
    ],
    "answer": [a * b for a in range(2, 6) for b in range(5, 10)],
}
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=6,
    loss_type="dr_grpo", scale_rewards=False, beta=0.05, sync_ref_model=True, ref_model_sync_steps=2,
    ref_model_mixup_alpha=0.3, optim="adafactor", learning_rate=5e-5,
    lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2}, warmup_steps=1,
    per_device_train_batch_size=10, num_generations=5, max_completion_length=20, max_grad_norm=0.2,
)
GRPOTrainer(
    model=MODEL, reward_funcs=NearMiss(4.0), args=args, train_dataset=Dataset.from_dict(data)
).train()
