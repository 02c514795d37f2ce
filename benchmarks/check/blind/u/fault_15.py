"""GRPO's clipped surrogate written out, for ablations of the clip range (clip-higher).

The loss is GRPO's: the minimum of the clipped and the unclipped objective, averaged over each completion and then over
the completions. Two epochs over each generation batch, so the ratio leaves 1. How many tokens are clipped is logged.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ClipAblation(GRPOTrainer):
    def surrogate(self, ratio, advantages):
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        return torch.minimum(ratio, clipped) * advantages

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        ratio = torch.exp(logps - old)
        objective = self.surrogate(ratio, inputs["advantages"].unsqueeze(1))
        per_row = (objective * mask).sum(1) / mask.sum(1).clamp(min=1)
        with torch.no_grad():
            outside = ((ratio < 1 - self.epsilon_low) | (ratio > 1 + self.epsilon_high)) * mask
            self._metrics["train"]["ablation/outside"].append((outside.sum() / mask.sum()).item())
            self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return -per_row.mean() / self.current_gradient_accumulation_steps


def spread(completion_ids, **kwargs):
    return [len(set(ids)) / 20 for ids in completion_ids]


def digits(completions, **kwargs):
    return [0.5 * any(ch.isdigit() for ch in c[0]["content"]) for c in completions]


trainer = ClipAblation(
    model=TINY,
    reward_funcs=[spread, digits],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=12, num_generations=6, max_completion_length=20, learning_rate=1e-4,
        lr_scheduler_type="constant", num_iterations=2, epsilon=0.1, epsilon_high=0.15, loss_type="grpo",
        logging_steps=1,
    ),
    train_dataset=Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Give the {n}th prime."}] for n in range(1, 33)]}
    ),
)
trainer.train()
