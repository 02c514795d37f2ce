import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GSPOTrainer(GRPOTrainer):
    """Group sequence policy optimization: one ratio per sequence, the geometric mean of the token ratios."""

    def _sequence_log_ratio(self, logps, old_logps, mask):
        return ((logps - old_logps) * mask).mean(dim=-1, keepdim=True)

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"].float()
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        old_logps = inputs.get("old_per_token_logps")
        if old_logps is None:
            old_logps = logps.detach()
        ratio = self._sequence_log_ratio(logps, old_logps, mask).exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        objective = torch.minimum(ratio * advantages, clipped * advantages)
        loss = -objective.mean() / self.current_gradient_accumulation_steps
        with torch.no_grad():
            metrics = self._metrics["train"]
            metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
            metrics["ratio/max"].append(ratio.max().item())
            metrics["ratio/clipped"].append((ratio != clipped).float().mean().item())
        return loss


def dataset():
    rows = []
    for i in range(48):
        name = ("Hana", "Cleo", "Finn")[i % 3]
        thing = ("coins", "cards", "eggs", "pens")[i % 4]
        a, b = 2 + (3 * i) % 8, 2 + i % 6
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each. How many {thing} does {name} have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def short(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=1,
    num_generations=8,
    num_iterations=2,
    importance_sampling_level="sequence",
    epsilon=0.1,
    epsilon_high=0.15,
    loss_type="grpo",
    max_completion_length=32,
    learning_rate=5e-4,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
)
GSPOTrainer(MODEL, [digits, short], args, train_dataset=dataset()).train()
