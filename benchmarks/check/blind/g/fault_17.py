import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShowRate(TrainerCallback):
    def __init__(self):
        self.rates = []

    def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        lr_scheduler.step()
        self.rates.append(lr_scheduler.get_last_lr()[0])

    def on_train_end(self, args, state, control, **kwargs):
        print("learning rates:", self.rates)


def vowels(completions, **kwargs):
    return [sum(ch in "aeiou" for ch in c) / 8 - 0.01 * len(c) for c in completions]


dataset = Dataset.from_dict({"prompt": [f"Sing about {t}: " for t in ("rain", "salt", "iron", "wool", "snow", "oats")]})

trainer = GRPOTrainer(
    model=MODEL,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=12,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=6,
        num_generations=3,
        max_completion_length=12,
    ),
    reward_funcs=vowels,
    train_dataset=dataset,
    callbacks=[ShowRate()],
)
trainer.train()
