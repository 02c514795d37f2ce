"""GRPO with batch-scaled advantages, computed in double precision."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class DoubleAdvantageTrainer(GRPOTrainer):
    """Our rewards sit on a large offset, where float32 statistics cancel; recompute them in float64."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        n = len(batch["advantages"])
        start = self.accelerator.process_index * n
        total = (self._rewards.double() * self.reward_weights.double()).sum(1)
        own = total[start:start + n]                      # groups never cross ranks here
        centred = own - own.view(-1, self.num_generations).mean(1).repeat_interleave(self.num_generations)
        scale = self.accelerator.reduce(own.std(), reduction="mean")
        batch["advantages"] = (centred / (scale + 1e-4)).float()
        return batch


def digits_by_topic(completions, level, **kwargs):
    return [lv + sum(ch.isdigit() for ch in c) / 6 for c, lv in zip(completions, level)]


def main():
    rows = []
    for i in range(12):
        rows.append({"prompt": f"Give me the number {i + 3} in digits:", "level": 0.0})
        rows.append({"prompt": f"Write a short sentence about number {i + 3}.", "level": 2.0})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-5, seed=9, shuffle_dataset=False,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=20, temperature=1.6,
        scale_rewards="batch",
    )
    trainer = DoubleAdvantageTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=digits_by_topic,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
