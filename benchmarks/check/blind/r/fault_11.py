"""GRPO with gradient accumulation and a log of the loss of each micro-batch.

The per-sequence loss (`grpo`) with four micro-batches per update, for a machine that fits four rows at a time.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

TASKS = [
    "List two tools.", "List two birds.", "List two games.", "List two songs.", "List two rivers.",
    "List two spices.", "List two fish.", "List two shapes.", "List two coins.", "List two boats.",
    "List two hats.", "List two drinks.", "List two roads.", "List two words.", "List two numbers.",
    "List two seasons.",
]


class AccumulatedLossTrainer(GRPOTrainer):
    """Averages the loss over the micro-batches of an update and keeps the single values."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.micro_losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.model.training:
            self.micro_losses.append(loss.item())
            loss = loss / self.current_gradient_accumulation_steps
        return loss


def two_words(completions, **kwargs):
    rewards = []
    for completion in completions:
        words = completion[0]["content"].split()
        rewards.append(1.0 - min(abs(len(words) - 2), 4) / 4)
    return rewards


def no_markup(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [-sum(c in "<>{}\"" for c in text) / max(len(text), 1) for text in texts]


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        loss_type="grpo",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=16,
        optim="sgd",
        learning_rate=0.005,
        max_grad_norm=100.0,
        max_steps=3,
        logging_steps=1,
    )
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": task}] for task in TASKS]})
    trainer = AccumulatedLossTrainer(
        model=MODEL, reward_funcs=[two_words, no_markup], args=config, train_dataset=dataset
    )
    trainer.train()
    print(len(trainer.micro_losses), "micro-batches")
