"""DAPO: clip-higher, token-level loss, no KL; ported from verl's actor update."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1)


def agg_loss(loss_matrix, mask, mode):
    if mode == "token-mean":
        return masked_mean(loss_matrix, mask)
    if mode == "seq-mean-token-mean":
        return ((loss_matrix * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    raise ValueError(mode)


def policy_loss(old_log_prob, log_prob, advantages, mask, clip_low, clip_high, mode):
    ratio = torch.exp(log_prob - old_log_prob)
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    loss = agg_loss(torch.maximum(unclipped, clipped), mask, mode)
    clip_fraction = masked_mean((clipped > unclipped).float(), mask)
    return loss, clip_fraction


class DAPOTrainer(GRPOTrainer):
    loss_agg_mode = "token-mean"

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        response_mask = inputs["completion_mask"]
        log_prob, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, response_mask.size(1), compute_entropy=True
        )
        old_log_prob = inputs.get("old_per_token_logps", log_prob.detach())
        loss, clip_fraction = policy_loss(
            old_log_prob,
            log_prob,
            inputs["advantages"][:, None],
            response_mask,
            self.epsilon_low,
            self.epsilon_high,
            self.loss_agg_mode,
        )
        self._metrics["train"]["entropy"].append(masked_mean(entropy.detach(), response_mask).item())
        self._metrics["train"]["actor/pg_clipfrac"].append(clip_fraction.item())
        return loss / self.current_gradient_accumulation_steps


def digits_per_token(completions, completion_ids, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / len(i) + 0.05 * len(i) for c, i in zip(completions, completion_ids)]


if __name__ == "__main__":
    rng = random.Random(29)
    rows = []
    for _ in range(48):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Cleo has {a} boxes with {b} toys each. How many toys does Cleo have?"}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=32, loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, max_steps=4,
        learning_rate=1e-4, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
    )
    DAPOTrainer(model=MODEL, reward_funcs=digits_per_token, args=args, train_dataset=Dataset.from_list(rows)).train()
