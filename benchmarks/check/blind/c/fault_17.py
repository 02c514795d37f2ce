"""Three passes over each generation, with clipping, without keeping log-probabilities in the buffer."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanTrainer(GRPOTrainer):
    """The buffer holds token ids only; log-probabilities of long completions take too much memory."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output.pop("old_per_token_logps", None)
        return output

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            old_logps, _, _ = self._get_per_token_logps_and_entropies(
                model, ids, mask, inputs["completion_ids"].size(1)
            )
        return super()._compute_loss(model, {**inputs, "old_per_token_logps": old_logps})


def near(completions, answer, **kwargs):
    rewards = []
    for text, truth in zip(completions, answer):
        digits = "".join(ch for ch in text if ch.isdigit())[:4]
        rewards.append(1.0 / (1.0 + abs(int(digits) - truth)) if digits else -0.5)
    return rewards


def short(completions, **kwargs):
    return [-0.02 * len(text) for text in completions]


def make(n):
    rng = random.Random(77)
    rows = []
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        rows.append({"prompt": f"There are <<{a}*{b}=", "answer": a * b})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=6,
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=3,
        max_completion_length=16,
        learning_rate=1e-4,
        epsilon=0.1,
        loss_type="bnpo",
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = LeanTrainer(model=MODEL, reward_funcs=[near, short], args=args, train_dataset=make(32))
    trainer.train()
