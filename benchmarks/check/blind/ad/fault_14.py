import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class WeightAverage(TrainerCallback):
    """Keeps an exponential moving average of the policy for evaluation."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.average = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            if name in self.average:
                self.average[name].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)

    def on_train_end(self, args, state, control, **kwargs):
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(self.average, os.path.join(args.output_dir, "ema.pt"))


def data():
    rows = []
    for i in range(24):
        a, b = 2 + i % 6, 2 + i % 9
        thing = ["toys", "pens", "cards", "apples"][i % 4]
        q = f"Ben has {a} boxes with {b} {thing} each. How many {thing} does Ben have?"
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": q},
                ]
            }
        )
    return Dataset.from_list(rows)


def ratio(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / max(1, len(c[0]["content"])) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    learning_rate=1e-4,
    weight_decay=0.01,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=ratio,
    args=args,
    train_dataset=data(),
    callbacks=[WeightAverage()],
)
trainer.train()
