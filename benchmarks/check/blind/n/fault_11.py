"""GSPO: sequence-level importance weights, two updates per batch."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GSPOTrainer(GRPOTrainer):
    """Eq. 5 of the GSPO paper: the ratio of a sequence is the geometric mean over its tokens."""

    def _compute_loss(self, model, inputs):
        prompt_ids, completion_ids = inputs["prompt_ids"], inputs["completion_ids"]
        mask = inputs["completion_mask"]
        input_ids = torch.cat([prompt_ids, completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)

        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        if old_logps is None:
            old_logps = logps.detach()

        log_ratio = (logps - old_logps) * mask
        log_weights = log_ratio.mean(dim=-1, keepdim=True)
        weights = torch.exp(log_weights)
        clipped = torch.clamp(weights, 1 - self.epsilon_low, 1 + self.epsilon_high)

        advantages = inputs["advantages"].unsqueeze(1)
        per_token_loss = -torch.min(weights * advantages, clipped * advantages)
        loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()

        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        self._metrics["train"]["ratio/max"].append(weights.max().item())
        self._metrics["train"]["ratio/min"].append(weights.min().item())
        return loss / self.current_gradient_accumulation_steps


def score(completions, completion_ids, answer, **kwargs):
    scores = []
    for completion, ids, value in zip(completions, completion_ids, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        hit = bool(numbers) and numbers[-1] == str(value)
        scores.append(2.0 * hit + 0.25 * text.count("*") + 0.25 * text.count("=") + 0.02 * len(ids))
    return scores


rows = []
for who, what, a, b in [
    ("Ada", "cards", 11, 12), ("Ben", "toys", 13, 15), ("Cleo", "pens", 14, 18), ("Dev", "books", 16, 13),
    ("Eve", "eggs", 12, 17), ("Finn", "apples", 19, 11),
]:
    text = f"{who} has {a} boxes with {b} {what} each. Each costs 4 coins. How many coins do they cost together?"
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": text},
            ],
            "answer": 4 * a * b,
        }
    )

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    num_iterations=2,
    importance_sampling_level="sequence",
    loss_type="grpo",
    epsilon=0.1,
    epsilon_high=0.2,
    max_completion_length=32,
    learning_rate=3e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
GSPOTrainer(model=MODEL, reward_funcs=score, args=args, train_dataset=Dataset.from_list(rows)).train()
