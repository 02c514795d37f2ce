"""DAPO with a compact loss of our own, several updates per generation."""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class CompactDapoTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            mask.shape[1],
            compute_entropy=True,
        )
        old = inputs.get("old_per_token_logps")
        delta = logps - (logps.detach() if old is None else old)
        ratio = delta.exp()
        cost = -inputs["advantages"][:, None]
        # the pessimistic bound, written for a cost instead of an advantage
        per_token = torch.maximum(cost * ratio, cost * ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high))

        # tokens of the generation, brought to one optimizer step's share
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        tokens = inputs["num_items_in_batch"].clamp(min=1) * share / self.accelerator.num_processes
        loss = torch.where(mask.bool(), per_token, torch.zeros_like(per_token)).sum() / tokens

        metrics = self._metrics["train" if self.model.training else "eval"]
        with torch.no_grad():
            kept = mask.bool()
            metrics["entropy"].append(entropies[kept].mean().item())
            metrics["approx_kl"].append((ratio[kept] - 1 - delta[kept]).mean().item())
        return loss


def braces(completions, **kwargs):
    return [(c[0]["content"].count("{") + c[0]["content"].count(":")) / 4 for c in completions]


def compact(completions, **kwargs):
    return [-len(c[0]["content"]) / 80 for c in completions]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Write the YAML of item {i * 5 + 2}."}] for i in range(16)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
        learning_rate=4e-4, per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4,
        num_generations=4, max_completion_length=24, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        temperature=1.1, gradient_checkpointing=False, logging_steps=1,
    )
    CompactDapoTrainer(model=MODEL, reward_funcs=[braces, compact], args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
