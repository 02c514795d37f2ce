"""GRPO with one large generation for several optimizer steps, and without a second scoring pass."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SinglePassTrainer(GRPOTrainer):
    """Every completion is trained on once (num_iterations=1), so the scoring pass after generation is not needed:
    the loss falls back to the detached log-probabilities of its own forward pass."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        if self.num_iterations == 1 and self.model.training and not torch.is_grad_enabled():
            return None, None, None
        return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)


def brevity(completions, **kwargs):
    return [-len(c[0]["content"]) / 40 + c[0]["content"].count("t") / 5 for c in completions]


if __name__ == "__main__":
    animals = ["fox", "owl", "carp", "ant", "horse", "newt", "goat", "swan", "bear", "toad", "hare", "crow"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What does a {a} eat?"}] for a in animals]})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        num_generations=4,
        max_completion_length=24,
        temperature=1.3,
        beta=0.0,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = SinglePassTrainer(model=MODEL, reward_funcs=brevity, args=config, train_dataset=dataset)
    trainer.train()
