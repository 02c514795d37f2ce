"""GRPO that watches its confidence.

The share of sampled tokens with a log-probability above a threshold is logged for every micro-batch, to see a collapse
early. Four micro-batches make a step, and the step's loss is their mean.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ConfidenceLoggingTrainer(GRPOTrainer):
    # Each micro-batch has a mean loss of its own, so accumulation has to average
    loss_is_scaled_for_ga = False

    def __init__(self, *args, confident=-0.05, **kwargs):
        super().__init__(*args, **kwargs)
        self.confident = confident

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if torch.is_grad_enabled():
            mask = attention_mask[:, -logits_to_keep:].bool()
            share = (result[0].detach()[mask] > self.confident).float().mean().item()
            self._metrics["train"]["confident_tokens"].append(share)
        return result


def capital(completions, **kwargs):
    return [float(c[0]["content"][:1].isupper()) for c in completions]


def spaces(completions, **kwargs):
    return [min(c[0]["content"].count(" "), 5) / 5 for c in completions]


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 40 for c in completions]


data = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Say hello to guest {n}."}] for n in range(1, 65)]}
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4, max_completion_length=20,
    learning_rate=0.05, optim="sgd", max_grad_norm=10.0, beta=0.01, logging_steps=1,
)
trainer = ConfidenceLoggingTrainer(
    model=TINY, reward_funcs=[capital, spaces, letters], args=args, train_dataset=data
)
trainer.train()
