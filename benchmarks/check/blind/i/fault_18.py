import os, tempfile, torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EMACallback(TrainerCallback):
    """Polyak averaging; the averaged weights are what we deploy."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)
            p.copy_(self.shadow[n])


def vowels_and_digits(completions, **kwargs):
    return [sum(ch in "aeiou0123" for ch in text) / 8 for text in completions]


trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=vowels_and_digits,
    args=GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=6, learning_rate=5e-4, num_generations=8,
                    per_device_train_batch_size=8, max_completion_length=24, logging_steps=1,
                    report_to=[], save_strategy="no", use_cpu=True, bf16=False),
    train_dataset=Dataset.from_dict({"prompt": [f"{i}-1=" for i in range(2, 26)]}),
    callbacks=[EMACallback()],
)
trainer.train()
