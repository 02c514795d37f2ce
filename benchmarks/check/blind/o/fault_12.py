"""GSPO (sequence-level importance ratios), ported from the paper's pseudocode."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GSPOTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old

        # s_i(theta): geometric mean of the token ratios of response i
        seq_log_ratio = ((logps - old) * mask).mean(dim=-1, keepdim=True)
        ratio = seq_log_ratio.exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"].unsqueeze(1)
        objective = torch.minimum(ratio * advantages, clipped * advantages).expand_as(logps)

        per_response = (objective * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        loss = -per_response.mean()

        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        metrics["gspo/clipped"].append((ratio != clipped).float().mean().item())
        metrics["gspo/ratio_max"].append(ratio.max().item())
        return loss / self.current_gradient_accumulation_steps if self.model.training else loss


def length_and_digits(completions, completion_ids, **kwargs):
    return [
        sum(ch.isdigit() for ch in c[0]["content"]) / 4 - 0.1 * len(ids) for c, ids in zip(completions, completion_ids)
    ]


if __name__ == "__main__":
    rng = random.Random(23)
    who = ["Ada", "Ben", "Eve", "Gus"]
    rows = []
    for _ in range(32):
        name = rng.choice(who)
        rows.append(
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": f"{name} has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} pens each. How many pens does {name} have?",
                    }
                ]
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        num_iterations=2,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=0.05,
        epsilon_high=0.08,
        max_completion_length=32,
        max_steps=4,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    GSPOTrainer(
        model=MODEL, reward_funcs=length_and_digits, args=args, train_dataset=Dataset.from_list(rows)
    ).train()
