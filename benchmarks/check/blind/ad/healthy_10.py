import os
import tempfile

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ListAdamW(torch.optim.Optimizer):
    """AdamW with multi-tensor operations and state in float32."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
                state["step"] += 1
            grads = [p.grad.float() for p in params]
            first = [self.state[p]["exp_avg"] for p in params]
            second = [self.state[p]["exp_avg_sq"] for p in params]
            b1, b2 = group["betas"]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_lerp_(first, grads, 1 - b1)
            torch._foreach_mul_(second, b2)
            torch._foreach_addcmul_(second, grads, grads, value=1 - b2)
            for p, m, v in zip(params, first, second):
                t = self.state[p]["step"].item()
                denom = (v / (1 - b2**t)).sqrt_().add_(group["eps"])
                p.addcdiv_(m.to(p.dtype), denom.to(p.dtype), value=-group["lr"] / (1 - b1**t))
        return loss


def rows():
    for i in range(24):
        thing = ["stamps", "books", "apples"][i % 3]
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Gus has {2 + i % 7} boxes with {2 + i % 6} {thing} each. How many {thing} does Gus have?"},
            ]
        }


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32)
matrices = [p for p in model.parameters() if p.ndim == 2]
vectors = [p for p in model.parameters() if p.ndim < 2]
optimizer = ListAdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors}], lr=1e-4)
scheduler = LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.1 * step))
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    learning_rate=1e-4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = GRPOTrainer(
    model=model,
    processing_class=AutoTokenizer.from_pretrained(PATH, padding_side="left"),
    reward_funcs=variety,
    args=args,
    train_dataset=Dataset.from_list(list(rows())),
    optimizers=(optimizer, scheduler),
)
trainer.train()
