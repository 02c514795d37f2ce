import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * b1 + p.grad * (1 - b1)).sign_(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


class LayerwiseTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            buckets = {}
            for name, p in self.model.named_parameters():
                if p.requires_grad:
                    depth = int(name.split(".")[2]) if ".layers." in name else (0 if "embed" in name else 1)
                    decays = p.ndim > 1
                    buckets.setdefault((depth, decays), []).append(p)
            self.optimizer = Lion(
                [
                    {
                        "params": ps,
                        "lr": self.args.learning_rate * 0.8 ** (1 - depth),
                        "weight_decay": 0.05 if decays else 0.0,
                    }
                    for (depth, decays), ps in sorted(buckets.items())
                ]
            )
        return self.optimizer


def reward(completions, **kwargs):
    return [len(c) % 5 + 0.2 * len(set(c)) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=3,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=14,
    loss_type="cispo",
    epsilon_high=5.0,
)
data = Dataset.from_dict({"prompt": [f"The {a} {b} says " for a in ("red", "shy", "old", "big") for b in ("ant", "elk", "emu", "yak")]})
LayerwiseTrainer(model=MODEL, args=args, reward_funcs=reward, train_dataset=data).train()
