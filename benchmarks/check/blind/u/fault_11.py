"""VESPO in double precision.

VESPO weighs a whole sequence by phi(w) = exp(lambda) * w^k * exp(-lambda * w), where w is the sequence's importance
weight, the product of its tokens' ratios pi_theta / pi_old. In float32 the product is noisy for long completions, so
the weights are computed in float64 here, and their spread is logged.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class DoubleVespoTrainer(GRPOTrainer):
    phi_seen = []

    @staticmethod
    @torch.no_grad()
    def get_gamma_weights(
        advantages, log_ratio_per_token, mask, importance_sampling_ratio=None,
        k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0,
    ):
        log_ratio = log_ratio_per_token.double().clamp(-20.0, 20.0)
        mask = mask.double()
        log_w = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
        if importance_sampling_ratio is not None:
            log_w = log_w + importance_sampling_ratio.double().log().clamp(-18.42, 20.0).sum(-1, keepdim=True)
        log_w = log_w.clamp(-18.420680743952367, 20.0)
        positive = advantages >= 0
        k = torch.where(positive, k_pos, k_neg).double()
        lam = torch.where(positive, lambda_pos, lambda_neg).double().clamp(min=1e-4)
        phi = torch.exp(lam + k * log_w - lam * log_w.exp())
        DoubleVespoTrainer.phi_seen.append((phi.min().item(), phi.max().item()))
        return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).to(advantages.dtype)

    def log(self, logs, *args, **kwargs):
        if self.phi_seen:
            logs = {**logs, "vespo/phi_min": self.phi_seen[-1][0], "vespo/phi_max": self.phi_seen[-1][1]}
        super().log(logs, *args, **kwargs)


def variety(completion_ids, **kwargs):
    return [len(set(ids)) / (len(ids) + 2) for ids in completion_ids]


def printable(completions, **kwargs):
    return [sum(ch.isprintable() for ch in c[0]["content"]) / 32 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=5e-5,
    lr_scheduler_type="constant", loss_type="vespo", num_iterations=3, logging_steps=1,
)
data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Describe {n} towns by the sea."}] for n in range(3, 35)]})
trainer = DoubleVespoTrainer(model=TINY, reward_funcs=[variety, printable], args=args, train_dataset=data)
trainer.train()
