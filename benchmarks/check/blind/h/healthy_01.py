import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class HandWrittenLoss(GRPOTrainer):
    """PPO-clip written case by case, with all divisions by the token count left to the end."""

    def _compute_loss(self, model, inputs):
        prompt, completion = inputs["prompt_ids"], inputs["completion_ids"]
        tokens = torch.cat((prompt, completion), dim=-1)
        attention = torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), dim=-1)
        keep = inputs["completion_mask"].bool()
        new, ent, _ = self._get_per_token_logps_and_entropies(
            model, tokens, attention, completion.shape[-1], compute_entropy=True
        )
        behaviour = inputs["old_per_token_logps"] if "old_per_token_logps" in inputs else new.detach()
        ratio = torch.exp(new - behaviour)
        adv = inputs["advantages"].unsqueeze(-1).expand_as(ratio)

        # A >= 0: the ratio stops to count above 1 + eps_high. A < 0: below 1 - eps_low.
        gain = torch.where(
            adv >= 0,
            ratio.clamp(max=1 + self.epsilon_high) * adv,
            ratio.clamp(min=1 - self.epsilon_low) * adv,
        )
        total = gain.masked_fill(~keep, 0.0).sum()
        window = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        window = window * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        self._metrics["train" if self.model.training else "eval"]["entropy"].append(ent[keep].mean().item())
        return total.neg() / window


def reward(completions, **kwargs):
    return [0.1 * sum(c.isdigit() for c in text) - 0.05 * text.count("4") for text in completions]


HandWrittenLoss(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(3, 8) for b in range(3, 8)]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        loss_type="dapo", num_iterations=2, steps_per_generation=2, gradient_accumulation_steps=2,
        epsilon=0.1, epsilon_high=0.14, learning_rate=1e-3,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=16, max_steps=6, logging_steps=1,
    ),
).train()
