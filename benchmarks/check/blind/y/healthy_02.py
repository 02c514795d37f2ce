"""GRPO with AdamW states sharded over the ranks by size (ZeRO-1 by hand)."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BalancedAdamW(torch.optim.AdamW):
    """The largest parameters first, each to the rank with the least so far; owners broadcast their updates."""

    def __init__(self, groups, **kwargs):
        super().__init__(groups, **kwargs)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        flat = [p for group in self.param_groups for p in group["params"]]
        load = [0] * self.world
        self.owner = {}
        for i in sorted(range(len(flat)), key=lambda i: (-flat[i].numel(), i)):
            rank = load.index(min(load))
            self.owner[id(flat[i])] = rank
            load[rank] += flat[i].numel()

    @torch.no_grad()
    def step(self, closure=None):
        kept = [(p, p.grad) for group in self.param_groups for p in group["params"] if self.owner[id(p)] != self.rank]
        for p, _ in kept:
            p.grad = None
        loss = super().step(closure)
        for p, grad in kept:
            p.grad = grad
        if self.world > 1:
            work = [dist.broadcast(p.data, src=self.owner[id(p)], async_op=True)
                    for group in self.param_groups for p in group["params"]]
            for w in work:
                w.wait()
        return loss


class ShardedTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        model = self.model if model is None else model
        if self.optimizer is None:
            decay = self.get_decay_parameter_names(model)
            named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
            self.optimizer = BalancedAdamW(
                [
                    {"params": [p for n, p in named if n in decay], "weight_decay": self.args.weight_decay},
                    {"params": [p for n, p in named if n not in decay], "weight_decay": 0.0},
                ],
                lr=self.args.learning_rate, betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer


def rhythm(completions, **kwargs):
    return [c.count(" ") / 5 + sum(ch.isdigit() for ch in c) / 20 - len(c) / 80 for c in completions]


def main():
    prompts = [f"{a} {b} {c}" for a in ("One", "Two") for b in ("red", "old", "wet", "mad") for c in ("dogs", "cars")]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-4, weight_decay=0.05, warmup_steps=1,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=20, temperature=1.4,
        steps_per_generation=2, loss_type="dapo", max_grad_norm=0.5,
    )
    trainer = ShardedTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=rhythm, train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()


if __name__ == "__main__":
    main()
