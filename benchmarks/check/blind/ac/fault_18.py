"""GRPO with a small AdamW of our own (no fused kernels on our hardware)."""
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
        self.num_updates = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.num_updates += 1
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(p.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                correction1 = 1 - beta1**self.num_updates
                correction2 = 1 - beta2**self.num_updates
                denominator = (state["exp_avg_sq"] / correction2).sqrt_().add_(group["eps"])
                p.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / correction1)


class OwnOptimizerTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            decayed = set(self.get_decay_parameter_names(self.model))
            named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            self.optimizer = PlainAdamW(
                [
                    {"params": [p for n, p in named if n in decayed], "weight_decay": self.args.weight_decay},
                    {"params": [p for n, p in named if n not in decayed], "weight_decay": 0.0},
                ],
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer


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
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = OwnOptimizerTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=spaces_and_length,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in questions * 3]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
