import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShadowWeights(TrainerCallback):
    """Moving average of the policy; written next to the run at the end."""

    def __init__(self, decay=0.95):
        self.decay = decay
        self.shadow = {}
        self.distance = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        total = 0.0
        for name, p in model.named_parameters():
            shadow = self.shadow[name]
            shadow.lerp_(p.detach(), 1 - self.decay)
            total += (p - shadow).pow(2).sum().item()
        self.distance.append(total**0.5)

    def on_train_end(self, args, state, control, model=None, **kwargs):
        backup = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(self.shadow, strict=False)
        model.save_pretrained(os.path.join(args.output_dir, "ema"))
        model.load_state_dict(backup, strict=False)
        print("distance to the average:", self.distance)


def data():
    rows = []
    for i in range(24):
        thing = ["apples", "toys", "books"][i % 3]
        q = f"Eve has {2 + i % 8} boxes with {2 + i % 5} {thing} each. How many {thing} does Eve have?"
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": q},
                ]
            }
        )
    return Dataset.from_list(rows)


def uncommon(completions, **kwargs):
    return [len(set(c[0]["content"]) - set("The answer is")) / 15 for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    model_init_kwargs={"dtype": "float32"},
    loss_type="dr_grpo",
    scale_rewards="batch",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    learning_rate=2e-4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=uncommon, args=args, train_dataset=data(), callbacks=[ShadowWeights()]
)
trainer.train()
