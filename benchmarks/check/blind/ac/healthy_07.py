"""GRPO with our AdamW (bfloat16-safe on the accelerator we use) and a linear decay to a tenth."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PlainAdamW(torch.optim.AdamW):
    """The same update as torch.optim.AdamW, one parameter at a time."""

    def __init__(self, params, **kwargs):
        super().__init__(params, foreach=False, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(p.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                t = state["step"].item()
                step_size = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
                eps = group["eps"] * (1 - beta2**t) ** 0.5
                p.sub_(step_size * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + eps))


def build_optimizer(model, lr, weight_decay, total_steps):
    decay = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    optimizer = PlainAdamW(
        [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}],
        lr=lr, betas=(0.9, 0.99), eps=1e-8,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 - 0.9 * min(step, total_steps) / total_steps
    )
    return optimizer, scheduler


def spaces_and_length(completions, **kwargs):
    return [c[0]["content"].count(" ") / 6 + len(c[0]["content"]) / 100 for c in completions]


def main():
    questions = ["Add 4 and 5", "What is 2+3?", "Write a poem", "12 * 4 =", "hello", "Name 3 digits"]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=24,
        temperature=1.2,
        learning_rate=1e-4,
        weight_decay=0.01,
        adam_beta2=0.99,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        optimizers=build_optimizer(model, args.learning_rate, args.weight_decay, args.max_steps),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=spaces_and_length,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
