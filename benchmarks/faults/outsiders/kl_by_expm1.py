"""Healthy: the KL estimates from log(policy / reference), k3 with expm1."""

import torch

STAGE = "kl"


def implementation(logprobs, reference, estimator):
    log_ratio = logprobs - reference
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio * log_ratio
    return torch.expm1(-log_ratio) + log_ratio
