"""Dr. GRPO with clip-higher, and a reward whose length bonus fades in with the steps."""
import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def faded_brevity(completions, trainer_state, log_metric=None, **kwargs):
    weight = min(1.0, (trainer_state.global_step + 1) / trainer_state.max_steps)
    if log_metric is not None:
        log_metric("brevity_weight", weight)
    return [any(ch.isdigit() for ch in c) * 1.0 - weight * len(c) / 40 for c in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(prefix="drgrpo-"),
    loss_type="dr_grpo",
    scale_rewards=False,
    epsilon=0.2,
    epsilon_high=0.28,
    num_iterations=2,
    beta=0.0,
    temperature=0.8,
    learning_rate=2e-5,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=1,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to="none",
    save_strategy="no",
)

if __name__ == "__main__":
    data = Dataset.from_dict({"prompt": [f"{a} dogs + {b} dogs =" for a in range(2, 8) for b in range(2, 8)]})
    here = os.path.dirname(os.path.abspath(__file__))
    GRPOTrainer(os.path.join(here, "tiny"), faded_brevity, config, data).train()
