"""GRPO with a robust baseline: the group's median instead of its mean."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class MedianBaselineTrainer(GRPOTrainer):
    """Median/MAD normalisation is less sensitive to a single lucky rollout than mean/std."""

    def _calculate_rewards(self, *args, **kwargs):
        rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._last_rewards = (rewards_per_func * self.reward_weights).nansum(dim=1)
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rewards = self._last_rewards
        groups = rewards.view(self.num_generations, -1)
        center = groups.median(dim=0, keepdim=True).values
        spread = (groups - center).abs().mean(dim=0, keepdim=True)
        batch["advantages"] = ((groups - center) / (spread + 1e-4)).reshape(-1)
        self._metrics["train"]["advantages/abs"].append(batch["advantages"].abs().mean().item())
        return batch


people = ["Aldora", "Brivek", "Corwyn", "Danric", "Eltas", "Fennia", "Garbel", "Holsor"]
relations = ["mentor", "employer", "neighbor", "patron"]
rows = []
for i in range(32):
    rows.append(
        {
            "prompt": [
                {"role": "user", "content": f"Who is the {relations[i % 4]} of {people[(i * 5) % 8]}?"},
            ],
            "topic_bonus": float(i % 3),
        }
    )


def reward(completions, topic_bonus, **kwargs):
    scores = []
    for completion, bonus in zip(completions, topic_bonus):
        text = completion[0]["content"]
        scores.append(bonus + 0.1 * sum(text.count(v) for v in "aeiou") - 0.01 * len(text))
    return scores


torch.manual_seed(0)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.2,
)
trainer = MedianBaselineTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows))
trainer.train()
