import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ClippedTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        per_token_logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], completion_ids], dim=1),
            torch.cat([inputs["prompt_mask"], mask], dim=1),
            completion_ids.size(1),
            compute_entropy=True,
        )
        advantages = inputs["advantages"].unsqueeze(1)
        old = inputs.get("old_per_token_logps", per_token_logps.detach())

        ratio = torch.exp(per_token_logps - old)
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss = -torch.min(ratio, clipped) * advantages

        normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        self._metrics["train"]["clip"].append((((ratio != clipped) * mask).sum() / mask.sum()).item())
        return (per_token_loss * mask).sum() / normalizer


def reward(completions, **kwargs):
    return [0.1 * len(set(c)) + sum(map(int, filter(str.isdecimal, c))) % 10 / 10 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=8,
    learning_rate=1e-3,
    num_iterations=4,
    epsilon=0.2,
    epsilon_high=0.28,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    logging_steps=1,
)
ClippedTrainer(
    model=MODEL,
    args=args,
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": [f"What is {n} + {n}? " for n in range(10, 26)]}),
).train()
