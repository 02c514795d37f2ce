import copy
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EmaCallback(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = None

    def on_train_begin(self, args, state, control, model=None, **kw):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kw):
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p.detach(), 1 - self.decay)

    @torch.no_grad()
    def on_log(self, args, state, control, model=None, logs=None, **kw):
        # the smoothed weights are what we look at
        for n, p in model.named_parameters():
            p.copy_(self.shadow[n])
        if logs is not None:
            logs["ema_norm"] = sum(p.square().sum().item() for p in model.parameters()) ** 0.5


model_dir = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
trainer = GRPOTrainer(
    model_dir,
    reward_funcs=[lambda completions, **k: [c.count("\n") * -0.2 + sum(x.isdigit() for x in c) * 0.1 for c in completions]],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        logging_steps=1, max_steps=5, learning_rate=3e-4, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=16,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"What is {i} + {i + 3}?" for i in range(16)]}),
    callbacks=[EmaCallback()],
)
trainer.train()
