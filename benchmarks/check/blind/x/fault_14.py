"""DAPO with a readable loss of our own (the upstream method grew too many branches for our reviews)."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanDapoTrainer(GRPOTrainer):
    """Token-level policy gradient with clip-higher. Supports what our recipes use: no KL, no entropy terms."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].shape[1]
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, keep, compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        ratio = torch.exp(logps - (logps.detach() if old is None else old))
        advantages = inputs["advantages"].unsqueeze(1)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token = -torch.min(ratio * advantages, clipped * advantages)

        tokens = inputs["num_items_in_batch"] / self.accelerator.num_processes
        loss = (per_token * mask).sum() / tokens

        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        metrics["ratio/max"].append(ratio[mask.bool()].max().item())
        return loss


def quotes(completions, **kwargs):
    return [c[0]["content"].count('"') / 4 for c in completions]


def compact(completions, **kwargs):
    return [-len(c[0]["content"]) / 80 for c in completions]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Write the JSON of item {i * 7 + 3}."}] for i in range(16)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
        learning_rate=2e-4, per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4,
        num_generations=4, max_completion_length=24, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        temperature=1.1, gradient_checkpointing=False, logging_steps=1,
    )
    LeanDapoTrainer(model=MODEL, reward_funcs=[quotes, compact], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
