"""GRPO whose rollouts come from an average of the weights (smoother exploration)."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AveragedSampling(TrainerCallback):
    """Polyak averaging; the average makes the next rollouts."""

    def __init__(self, decay=0.8):
        self.decay = decay
        self.average = None

    @torch.no_grad()
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            if name in self.average:
                self.average[name].mul_(self.decay).add_(p, alpha=1 - self.decay)
        self.use_average(model)

    @torch.no_grad()
    def use_average(self, model):
        for name, p in model.named_parameters():
            if name in self.average:
                p.copy_(self.average[name])


rows = []
for i in range(24):
    a, b = 2 + i % 13, 9 - i % 8
    what = ["shells", "stamps", "toys", "cards"][i % 4]
    rows.append(
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Hana has {a} boxes with {b} {what} each. How many {what} does Hana have?"},
            ],
            "answer": a * b,
        }
    )


def close_to_answer(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer):
        tail = "".join(ch if ch.isdigit() else " " for ch in completion[0]["content"]).split()
        scores.append(1.0 / (1.0 + abs(int(tail[-1][:6]) - gold) / gold) if tail else -0.5)
    return scores


def concise(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
)
trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[close_to_answer, concise],
    args=args,
    train_dataset=Dataset.from_list(rows),
    callbacks=[AveragedSampling()],
)
trainer.train()
