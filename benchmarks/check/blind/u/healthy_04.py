"""GSPO with most of the rare switches on.

Sequence-level ratios with the paper's tiny clip range over two iterations, a cap on the ratio, truncated completions
masked, entropy quantile and bonus, a bias-corrected KL, padding to multiples of 8, and a narrow sampler.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def digits(completions, **kwargs):
    return [min(sum(ch.isdigit() for ch in c[0]["content"]), 6) / 6 for c in completions]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 24 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=2, num_generations=8,
    max_completion_length=24, learning_rate=2e-5, lr_scheduler_type="constant",
    loss_type="grpo", importance_sampling_level="sequence", num_iterations=2, epsilon=3e-4, epsilon_high=4e-4,
    delta=1.5, beta=0.05, use_bias_correction_kl=True, mask_truncated_completions=True, top_entropy_quantile=0.6,
    entropy_coef=0.002, pad_to_multiple_of=8, temperature=1.1, top_k=60, top_p=0.95, min_p=0.001,
    scale_rewards="batch", reward_weights=[1.0, 0.7], max_grad_norm=0.3, weight_decay=0.02, warmup_steps=1,
    logging_steps=1,
)
data = Dataset.from_list(
    [
        {"prompt": [{"role": "system", "content": "Answer."}, {"role": "user", "content": f"Is {n} even?" + " Why?" * (n % 4)}]}
        for n in range(10, 50)
    ]
)
GRPOTrainer(model=TINY, reward_funcs=[digits, distinct], args=args, train_dataset=data).train()
