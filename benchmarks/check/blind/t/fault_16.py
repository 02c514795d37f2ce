"""GRPO on a small machine: after each piece of work, give back the memory that is not needed."""
import gc
import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FreeMemory(TrainerCallback):
    """Frees gradients and garbage where the trainer is between two pieces of work."""

    def _free(self, model):
        model.zero_grad(set_to_none=True)
        gc.collect()

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        self._free(model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self._free(model)


def variety(completion_ids, **kwargs):
    """Different tokens, and a little less for long texts."""
    return [len(set(ids)) / 4 - 0.05 * len(ids) for ids in completion_ids]


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=variety,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        num_generations=4,
        max_completion_length=12,
        learning_rate=1e-4,
        loss_type="dr_grpo",
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Line {k}: what did he say?"}]} for k in range(12)]
    ),
    callbacks=[FreeMemory()],
)
trainer.train()
