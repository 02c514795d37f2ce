"""GRPO with optimizer states divided over the ranks (a small ZeRO-1 by hand)."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ShardedAdamW(torch.optim.AdamW):
    """Each rank steps the parameters it owns and hands them to the others."""

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.flat = [p for group in self.param_groups for p in group["params"]]
        self.owned = self._balance()

    def _balance(self):
        # The largest parameters first, each to the rank with the fewest elements so far
        load = [0] * self.world
        owned = set()
        for parameter in sorted(self.flat, key=lambda p: -p.numel()):
            owner = load.index(min(load))
            load[owner] += parameter.numel()
            if owner == self.rank:
                owned.add(id(parameter))
        return owned

    @torch.no_grad()
    def step(self, closure=None):
        kept = {}
        for parameter in self.flat:
            if id(parameter) not in self.owned:
                kept[id(parameter)], parameter.grad = parameter.grad, None
        loss = super().step(closure)
        for index, parameter in enumerate(self.flat):
            if id(parameter) in kept:
                parameter.grad = kept[id(parameter)]
            dist.broadcast(parameter.data, src=index % self.world)
        return loss


class ShardedTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            decay = set(self.get_decay_parameter_names(self.model))
            named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            groups = [
                {"params": [p for n, p in named if n in decay], "weight_decay": self.args.weight_decay},
                {"params": [p for n, p in named if n not in decay], "weight_decay": 0.0},
            ]
            self.optimizer = ShardedAdamW(groups, lr=self.args.learning_rate, betas=(0.9, 0.95))
        return self.optimizer


def reward(completions, completion_ids, **kwargs):
    return [
        0.3 * sum(ch.isdigit() for ch in c[0]["content"]) - 0.02 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        weight_decay=0.01,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Say {n}."}]} for n in range(40)])
    ShardedTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
