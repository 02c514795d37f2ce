"""GRPO from a streamed dataset, with a Lion optimizer of its own."""
import os
import random
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023: the sign of an interpolated momentum, with decoupled weight decay."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                momentum = state["exp_avg"]
                direction = momentum.lerp(p.grad, 1 - beta1).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - beta2)
        return loss


def stream():
    rng = random.Random(12)
    for i in range(200):
        a = rng.randint(1, 999)
        yield {"prompt": [{"role": "user", "content": f"Tell me a number that is {a} backwards (task {i}), in words or digits."}], "digits": str(a)[::-1]}


def overlap(completions, digits, **kwargs):
    scores = []
    for completion, target in zip(completions, digits):
        text = completion[0]["content"]
        scores.append(sum(ch in text for ch in target) / len(target) - 0.02 * len(text))
    return scores


def main():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=1e-4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=20,
        max_grad_norm=0.5,
        mask_truncated_completions=True,
    )
    GRPOTrainer(
        model=model,
        reward_funcs=overlap,
        args=args,
        train_dataset=IterableDataset.from_generator(stream),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        optimizers=(optimizer, get_linear_schedule_with_warmup(optimizer, 0, args.max_steps)),
    ).train()


if __name__ == "__main__":
    main()
