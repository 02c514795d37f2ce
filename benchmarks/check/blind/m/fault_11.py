"""Two PPO epochs per rollout. The behaviour log-probabilities are taken from the training forward pass, whose
kernels and numerics differ from those of the no-grad pass on our GPUs."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ConsistentRatioTrainer(GRPOTrainer):
    """Train/inference mismatch is a known source of noise in the ratio: use the same forward for both sides."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            old, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].size(1))
        return super()._compute_loss(model, {**inputs, "old_per_token_logps": old})


def alternation(completions, **kwargs):
    """Share of neighbouring characters that differ."""
    return [sum(a != b for a, b in zip(t, t[1:])) / max(len(t) - 1, 1) for t in completions]


def brevity(completion_ids, **kwargs):
    return [-0.005 * len(ids) for ids in completion_ids]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=8,
    steps_per_generation=2,
    num_iterations=2,
    epsilon=0.2,
    epsilon_high=0.28,
    max_completion_length=24,
    learning_rate=1e-4,
    lr_scheduler_type="constant",
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
trainer = ConsistentRatioTrainer(
    model=MODEL,
    reward_funcs=[alternation, brevity],
    args=config,
    train_dataset=Dataset.from_dict({"prompt": [f"{i} {i - 1} {i - 2}" for i in range(9, 60)]}),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()
