"""Geometric-mean policy optimisation (GMPO), TRL's experimental trainer, over two iterations of each batch."""

import os
import tempfile

from datasets import Dataset
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

try:
    import rlvr_debug

    rlvr_debug.expect(loss="gmpo")
except ImportError:
    pass

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 40 for c in completions]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 24 for ids in completion_ids]


args = GMPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=5e-6,
    lr_scheduler_type="constant", num_iterations=2, epsilon=0.2, epsilon_high=0.4, beta=0.03, logging_steps=1,
)
trainer = GMPOTrainer(
    model=TINY,
    reward_funcs=[letters, distinct],
    args=args,
    train_dataset=Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Describe {n} towns by the river."}] for n in range(2, 34)]}
    ),
)
trainer.train()
