import copy
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EMA(TrainerCallback):
    """Keeps an average of the weights, so that the model which we save at the end is smooth."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, value in model.state_dict().items():
            self.shadow[name].lerp_(value, 1 - self.decay)
        model.load_state_dict(self.shadow)


def reward(completions, **kwargs):
    return [c.count("4") * 0.1 - c.count("8") * 0.05 for c in completions]


prompts = [f"The code of room {n} is " for n in range(100, 132, 2)]

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-3,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=14,
)
trainer = GRPOTrainer(
    model=MODEL,
    args=args,
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    callbacks=[EMA(0.9)],
)
trainer.train()
trainer.save_model(os.path.join(args.output_dir, "ema"))
