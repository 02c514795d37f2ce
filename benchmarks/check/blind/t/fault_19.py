"""Makes room for generation: optimizer buffers are dropped before a rollout and made again when needed."""
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class OffloadOptimizer(TrainerCallback):
    """torch's optimizers create their buffers lazily, so they need not stay around during generation."""

    def __init__(self):
        self.freed = 0

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        for buffers in optimizer.state.values():
            self.freed += sum(b.numel() * b.element_size() for b in buffers.values() if hasattr(b, "numel"))
        optimizer.state.clear()

    def on_train_end(self, args, state, control, **kwargs):
        print(f"freed {self.freed / 2**20:.1f} MiB")


def commas(completions, **kwargs):
    return [min(c[0]["content"].count(","), 2) + 0.05 * len(set(c[0]["content"])) for c in completions]


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=commas,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        learning_rate=3e-4,
        weight_decay=0.01,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Three things of kind {k}?"}]} for k in range(8)]
    ),
    callbacks=[OffloadOptimizer()],
)
trainer.train()
