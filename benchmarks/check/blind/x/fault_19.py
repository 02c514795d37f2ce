"""CISPO run of the reasoning recipe. Sections of the config are merged in order, later ones win."""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

BASE = dict(
    use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1, gradient_checkpointing=False,
    learning_rate=2e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=0, max_grad_norm=0.2,
)
DAPO = dict(  # as in the paper: clip-higher, token-level mean, no KL
    loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, scale_rewards="group", mask_truncated_completions=False,
)
CISPO = dict(  # keeps the gradient of clipped tokens
    loss_type="cispo", num_iterations=2,
)
SIZE = dict(
    max_steps=4, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=8,
    max_completion_length=24, temperature=1.1,
)


def recipe(*sections):
    merged = {}
    for section in sections:
        merged.update(section)
    return GRPOConfig(output_dir=tempfile.mkdtemp(), **merged)


def steps(completions, **kwargs):
    return [c[0]["content"].count("=") + c[0]["content"].count("*") / 4 for c in completions]


def length(completions, **kwargs):
    return [-len(c[0]["content"]) / 60 for c in completions]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Compute {a} * {b} - {a} with steps."}] for a, b in
                    [(3, 7), (5, 8), (6, 12), (9, 4), (11, 2), (13, 3)]]}
    )
    trainer = GRPOTrainer(
        model=MODEL, reward_funcs=[steps, length], args=recipe(BASE, DAPO, CISPO, SIZE), train_dataset=data
    )
    trainer.train()


if __name__ == "__main__":
    main()
