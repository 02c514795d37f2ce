"""GRPO with two passes over each rollout. The old log-probabilities use the same micro-batch shape as the new ones."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(23)
    units = ["meters", "liters", "grams", "hours"]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Convert {rng.randint(2, 500)} {rng.choice(units)}."}]} for _ in range(n)]
    )


def numeric(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / (len(t) + 1) - 0.05 * t.count("<") for t in texts]


def ends(completion_ids, **kwargs):
    return [0.3 if ids[-1] == 258 else 0.0 for ids in completion_ids]


class MatchedShapesTrainer(GRPOTrainer):
    """The kernels pick different reductions for the rollout's batch size than for a micro-batch's, and then the ratio
    does not start at exactly 1. So the old log-probabilities come from a forward pass of the micro-batch itself."""

    def _compute_loss(self, model, inputs):
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            old, _, _ = self._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, inputs["completion_ids"].size(1)
            )
        return super()._compute_loss(model, {**inputs, "old_per_token_logps": old})


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        num_iterations=2,
        epsilon=0.1,
        epsilon_high=0.2,
        max_completion_length=20,
    )
    trainer = MatchedShapesTrainer(
        model=TINY,
        reward_funcs=[numeric, ends],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
