"""Two updates per generation with tight clipping.

The old log-probabilities are not kept between the updates: they are computed when the loss needs them, one
micro-batch at a time, which saves the (batch x length) buffers.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LazyOldLogpsTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        batch.pop("old_per_token_logps", None)
        return batch

    def _old_logps(self, model, inputs):
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, inputs["completion_ids"].size(1)
            )
        return logps

    def _compute_loss(self, model, inputs):
        inputs = dict(inputs)
        inputs["old_per_token_logps"] = self._old_logps(model, inputs)
        return super()._compute_loss(model, inputs)


def rising(completions, **kwargs):
    """Share of neighbouring characters in alphabetical order."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        pairs = list(zip(text, text[1:]))
        rewards.append(sum(a <= b for a, b in pairs) / max(len(pairs), 1))
    return rewards


def compact(completion_ids, **kwargs):
    return [-len(ids) / 40 for ids in completion_ids]


if __name__ == "__main__":
    letters = ["a to f", "k to p", "b to h", "m to z", "c to g", "d to q", "s to w", "e to i"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Say the letters from {span}."}] for span in letters],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        num_iterations=2,
        epsilon=0.1,
        loss_type="bnpo",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_steps=3,
        logging_steps=1,
        seed=3,
    )
    trainer = LazyOldLogpsTrainer(
        model=MODEL, reward_funcs=[rising, compact], args=args, train_dataset=dataset
    )
    trainer.train()
