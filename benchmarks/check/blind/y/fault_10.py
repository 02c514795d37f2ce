"""GRPO with optimizer states sharded over the ranks (ZeRO-1 in fifty lines)."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShardedAdamW(torch.optim.AdamW):
    """Each rank keeps moments for, and updates, its share of the parameters; then all exchange."""

    def __init__(self, groups, **kwargs):
        super().__init__(groups, **kwargs)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        everything = [p for group in self.param_groups for p in group["params"]]
        self.mine = {id(p) for i, p in enumerate(everything) if i % self.world == self.rank}

    @torch.no_grad()
    def step(self, closure=None):
        kept = []
        for group in self.param_groups:
            for p in group["params"]:
                if id(p) not in self.mine:
                    kept.append((p, p.grad))
                    p.grad = None
        loss = super().step(closure)
        for p, grad in kept:
            p.grad = grad
        if self.world > 1:
            handles = []
            for group in self.param_groups:
                for i, p in enumerate(group["params"]):
                    handles.append(dist.broadcast(p.data, src=i % self.world, async_op=True))
            for handle in handles:
                handle.wait()
        return loss


def groups_of(model, lr):
    body, small, head = [], [], []
    for name, p in model.named_parameters():
        if name.startswith("lm_head"):
            head.append(p)
        elif p.ndim < 2:
            small.append(p)
        else:
            body.append(p)
    return [
        {"params": body, "lr": lr, "weight_decay": 0.01},
        {"params": small, "lr": lr, "weight_decay": 0.0},
        {"params": head, "lr": lr, "weight_decay": 0.0},
    ]


def consonants(completions, **kwargs):
    texts = [c[0]["content"].lower() for c in completions]
    return [sum(ch in "bcdfghjklmnpqrstvwxyz" for ch in t) / (len(t) + 2) for t in texts]


def length_penalty(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=1e-4, lr_scheduler_type="constant",
        per_device_train_batch_size=4, num_generations=8, max_completion_length=20, temperature=1.3,
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    optimizer = ShardedAdamW(groups_of(model, args.learning_rate), lr=args.learning_rate, betas=(0.9, 0.99))
    rows = [{"prompt": [{"role": "user", "content": f"Which {k} is the {s}?"}]}
            for k in ("river", "animal", "planet", "word") for s in ("longest", "oldest", "smallest", "best")]
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[consonants, length_penalty],
        train_dataset=Dataset.from_list(rows),
        optimizers=(optimizer, None),
    )
    trainer.train()


if __name__ == "__main__":
    main()
