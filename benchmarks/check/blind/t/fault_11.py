"""Two passes over each generation; what a micro-batch no longer needs is freed after its loss."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanTrainer(GRPOTrainer):
    """Long completions make the log-probability buffers big, so they go as soon as the loss is there."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        for key in ("old_per_token_logps", "sampling_per_token_logps"):
            inputs.pop(key, None)
        return loss


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 8 for c in completions]


trainer = LeanTrainer(
    model=TINY,
    reward_funcs=variety,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        num_iterations=2,
        max_completion_length=24,
        learning_rate=3e-4,
        epsilon=0.1,
        loss_type="grpo",
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"SHOUT number {k}!"}]} for k in range(6)]
    ),
)
trainer.train()
