"""Short-answer GRPO. The patch below silences the division by (count - 1) that used to warn for groups with one valid
reward (see our issue tracker)."""
import tempfile
from pathlib import Path

import torch
import trl.trainer.grpo_trainer as grpo_module
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def nanstd(tensor, dim=None, keepdim=False):
    mean = torch.nanmean(tensor, dim=dim, keepdim=True)
    std = torch.nanmean((tensor - mean) ** 2, dim=dim, keepdim=True).sqrt()
    if keepdim:
        return std
    return std.squeeze() if dim is None else std.squeeze(dim)


grpo_module.nanstd = nanstd

HERE = Path(__file__).parent


def load():
    def gen():
        for a in range(11, 41, 5):
            for b in range(12, 42, 6):
                yield {"prompt": f"{a} + {b} =", "a": a, "b": b}

    return Dataset.from_generator(gen, cache_dir=tempfile.mkdtemp())


def r_first_digit(completions, a, b, **kwargs):
    return [float(c.strip().startswith(str(x + y)[0])) for c, x, y in zip(completions, a, b)]


def r_short(completion_ids, **kwargs):
    return [1.0 / len(ids) for ids in completion_ids]


trainer = GRPOTrainer(
    model=str(HERE / "tiny"),
    reward_funcs=[r_first_digit, r_short],
    train_dataset=load(),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=5e-5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=24, scale_rewards="group",
        save_strategy="no", logging_steps=1,
    ),
)
trainer.train()
