"""An exponential moving average of the policy for evaluation.

After each step the shadow weights move a tenth of the way to the policy's. They are only written out at the end; the
policy that trains is not affected.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class EmaCallback(TrainerCallback):
    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {name: parameter.detach() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, parameter in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(parameter, alpha=1 - self.decay)

    def on_train_end(self, args, state, control, **kwargs):
        torch.save(self.shadow, os.path.join(args.output_dir, "ema.pt"))


def questions(n):
    kinds = ["How far is {}?", "Where is {}?", "Who lives on {}?", "What is {} made of?"]
    bodies = ["the moon", "Mars", "Venus", "Jupiter", "Saturn", "Pluto", "the sun", "Io"]
    return [[{"role": "user", "content": kinds[i % 4].format(bodies[i // 4 % 8])}] for i in range(n)]


def unlike_padding(completion_ids, **kwargs):
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def ascii_only(completions, **kwargs):
    return [0.5 * c[0]["content"].isascii() for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=16, learning_rate=5e-5,
    scale_rewards="batch", logging_steps=1,
)
trainer = GRPOTrainer(
    model=TINY, reward_funcs=[unlike_padding, ascii_only], args=args,
    train_dataset=Dataset.from_dict({"prompt": questions(32)}), callbacks=[EmaCallback(decay=0.9)],
)
trainer.train()
