"""GSPO trainer: one importance ratio per sequence, with the ratio's statistics in the log."""
import os
import random
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class GSPOTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], completion_ids], dim=1),
            torch.cat([inputs["prompt_mask"], mask], dim=1),
            completion_ids.size(1),
            compute_entropy=True,
        )
        old_logps = inputs.get("old_per_token_logps")
        if old_logps is None:
            old_logps = logps.detach()

        log_ratio = (logps - old_logps) * mask
        ratio = log_ratio.mean(dim=-1).exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"]
        loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()

        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["gspo/ratio_max"].append(ratio.detach().max().item())
        metrics["gspo/clipped"].append((ratio != clipped).float().mean().item())
        metrics["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss / self.current_gradient_accumulation_steps


def contains_answer(completions, answer, **kwargs):
    return [1.0 if re.search(rf"\b{a}\b", c[0]["content"]) else 0.0 for c, a in zip(completions, answer)]


def no_ramble(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


rng = random.Random(41)
rows = []
for _ in range(64):
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    name = rng.choice(["Ada", "Ben", "Cleo", "Hana"])
    question = f"{name} has {a} boxes with {b} stamps each. How many stamps does {name} have?"
    rows.append({"prompt": [{"role": "user", "content": question}], "answer": str(a * b)})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_iterations=2,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-6,
    loss_type="grpo",
    importance_sampling_level="sequence",
    epsilon=0.02,
    epsilon_high=0.03,
    bf16=False,
    use_cpu=True,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)
trainer = GSPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=[contains_answer, no_ramble],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
