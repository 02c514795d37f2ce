import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SideEMA(TrainerCallback):
    def __init__(self, decay=0.95):
        self.decay, self.average = decay, None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.average is None:
            self.average = {n: p.detach().clone() for n, p in model.named_parameters()}
            return
        for n, p in model.named_parameters():
            self.average[n].mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def on_train_end(self, args, state, control, model=None, **kwargs):
        gap = sum((self.average[n] - p).norm().item() for n, p in model.named_parameters())
        print(f"distance of the average from the last weights: {gap:.4f}")


def reward(completions, **kwargs):
    return [0.3 * ("8" in c) + 0.1 * len(set(c)) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=2e-4,
    loss_type="sapo",
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=16,
)
data = Dataset.from_dict({"prompt": [f"Ticket {i * 37 % 101}: " for i in range(32)]})
GRPOTrainer(model=MODEL, args=args, reward_funcs=reward, train_dataset=data, callbacks=[SideEMA()]).train()
