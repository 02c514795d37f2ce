"""GRPO with optimizer states divided over the ranks by size."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class PartitionedAdamW(torch.optim.AdamW):
    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.everything = [p for group in self.param_groups for p in group["params"]]
        load = [0] * dist.get_world_size()
        self.owner = {}
        for parameter in sorted(self.everything, key=lambda p: p.numel(), reverse=True):
            rank = load.index(min(load))
            self.owner[parameter] = rank
            load[rank] += parameter.numel()

    @torch.no_grad()
    def step(self, closure=None):
        here = dist.get_rank()
        held = [(p, p.grad) for p in self.everything if self.owner[p] != here]
        for parameter, _ in held:
            parameter.grad = None
        result = super().step(closure)
        for parameter, gradient in held:
            parameter.grad = gradient
        work = [dist.broadcast(p.data, src=self.owner[p], async_op=True) for p in self.everything]
        for handle in work:
            handle.wait()
        return result


class PartitionedTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            names = set(self.get_decay_parameter_names(self.model))
            trained = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            self.optimizer = PartitionedAdamW(
                [
                    {"params": [p for n, p in trained if n in names], "weight_decay": self.args.weight_decay},
                    {"params": [p for n, p in trained if n not in names], "weight_decay": 0.0},
                ],
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer


def reward(completions, completion_ids, **kwargs):
    return [
        0.2 * sum(ch.isdigit() for ch in c[0]["content"]) + 0.04 * len(set(c[0]["content"])) - 0.02 * len(ids)
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
        weight_decay=0.1,
        adam_beta2=0.95,
        learning_rate=1e-3,
        warmup_steps=1,
        lr_scheduler_type="cosine",
        model_init_kwargs={"dtype": "float32"},
    )
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Is {n} prime?"}]} for n in range(40)])
    PartitionedTrainer(model=MODEL, reward_funcs=reward, args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
