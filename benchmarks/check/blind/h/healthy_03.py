import os
import tempfile

import torch
from datasets import Dataset
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

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
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - b1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)
        return loss


class GSPO(GRPOTrainer):
    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is None:
            named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            matrices = [p for n, p in named if p.ndim >= 2]
            others = [p for n, p in named if p.ndim < 2]
            self.optimizer = Lion(
                [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                lr=self.args.learning_rate,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            warmup = 2
            self.lr_scheduler = LambdaLR(
                self.optimizer if optimizer is None else optimizer,
                lambda s: (s + 1) / warmup if s < warmup else max(0.1, 1 - (s - warmup) / max(1, num_training_steps)),
            )
        return self.lr_scheduler


if __name__ == "__main__":
    src = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
    trainer = GSPO(
        model=AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(src, padding_side="left"),
        reward_funcs=lambda completions, **kw: [sum(map(str.isdigit, c)) / 16 + len(set(c)) / 50 for c in completions],
        train_dataset=Dataset.from_dict({"prompt": [f"{x} take away {x // 2} is " for x in range(4, 30)]}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
            importance_sampling_level="sequence", loss_type="grpo", epsilon=0.1, epsilon_high=0.15,
            steps_per_generation=4, per_device_train_batch_size=4, num_generations=8, max_completion_length=16,
            learning_rate=2e-5, max_steps=7, logging_steps=1,
        ),
    )
    trainer.train()
