"""GRPO with a written-out loss: clipped surrogate and a KL penalty to the reference."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def k3(logp_a, logp_b):
    """Schulman's low-variance estimator: r - 1 - log r."""
    log_r = logp_a - logp_b
    return log_r.exp() - 1 - log_r


class PlainLossTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        input_ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, completion_ids.size(1), compute_entropy=True
        )

        old_logps = inputs.get("old_per_token_logps", logps.detach())
        ratio = torch.exp(logps - old_logps)
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        per_token_loss = -torch.min(ratio * advantages, clipped * advantages)

        kl = k3(logps, inputs["ref_per_token_logps"])
        per_token_loss = per_token_loss + self.beta * kl

        lengths = mask.sum(-1).clamp(min=1)
        loss = ((per_token_loss * mask).sum(-1) / lengths).mean()
        self._metrics["train"]["kl"].append(((kl.detach() * mask).sum() / mask.sum()).item())
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def reward(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text)
        hit = bool(numbers) and numbers[-1] == str(value)
        rewards.append(1.5 * hit + 0.02 * len(text) - 0.1 * text.count("\n"))
    return rewards


def dataset():
    rows = []
    for i, (who, what) in enumerate(zip(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"], ["pens", "eggs", "toys"] * 2)):
        a, b = 11 + i, 17 - i
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"},
                ],
                "answer": a * b,
            }
        )
    return Dataset.from_list(rows)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        beta=0.2,
        use_bias_correction_kl=False,
        loss_type="grpo",
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    PlainLossTrainer(MODEL, reward, args, train_dataset=dataset()).train()


if __name__ == "__main__":
    main()
