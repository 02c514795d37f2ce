import math
import os
import random
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
STEPS = 6


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum, decoupled weight decay (Chen et al. 2023)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1.0 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


def groups(model, lr, decay):
    embed, matrices, vectors = [], [], []
    for name, p in model.named_parameters():
        if "embed_tokens" in name:
            embed.append(p)
        elif p.ndim >= 2:
            matrices.append(p)
        else:
            vectors.append(p)
    return [
        {"params": embed, "lr": lr * 0.1, "weight_decay": 0.0},
        {"params": matrices, "lr": lr, "weight_decay": decay},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
    ]


def cosine_with_floor(step, floor=0.2):
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(step, STEPS) / STEPS))


class Count:
    def __init__(self, alphabet, weight, name):
        self.alphabet, self.weight, self.__name__ = set(alphabet), weight, name

    def __call__(self, completions, **kwargs):
        return [self.weight * sum(ch in self.alphabet for ch in c[0]["content"]) for c in completions]


def rows(n=48):
    rng = random.Random(77)
    for _ in range(n):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Eve has {a} boxes with {b} pens each. How many pens does Eve have?"},
            ]
        }


model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
optimizer = Lion(groups(model, lr=3e-5, decay=0.1))
trainer = GRPOTrainer(
    model=model,
    processing_class=AutoTokenizer.from_pretrained(MODEL),
    reward_funcs=[Count("0123456789", 0.05, "digits"), Count("aeiou", 0.1, "vowels")],
    train_dataset=Dataset.from_list(list(rows())),
    optimizers=(optimizer, LambdaLR(optimizer, cosine_with_floor)),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], max_steps=STEPS, logging_steps=1,
        learning_rate=3e-5, per_device_train_batch_size=8, num_generations=4, max_completion_length=56, save_strategy="no",
        gradient_accumulation_steps=2, scale_rewards="batch", gradient_checkpointing=False,
    ),
)
trainer.train()
