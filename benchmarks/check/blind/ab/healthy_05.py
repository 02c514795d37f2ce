"""GRPO with AdamW moments spread over the ranks."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ShardedAdamW(torch.optim.AdamW):
    """AdamW whose moments are spread over the ranks: each rank steps its parameters, then they are exchanged."""

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.flat = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        held = []
        for i, p in enumerate(self.flat):
            if i % self.world != self.rank:
                held.append((p, p.grad))
                p.grad = None
        super().step()
        for p, grad in held:
            p.grad = grad
        works = [dist.broadcast(p.data, src=i % self.world, async_op=True) for i, p in enumerate(self.flat)]
        for work in works:
            work.wait()


class ShardedTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            params = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = ShardedAdamW(
                params,
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
            )
        return self.optimizer


def vowel_ratio(completions, **kwargs):
    return [sum(ch in "aeiouy" for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def tokens(completion_ids, **kwargs):
    return [1.0 - abs(len(ids) - 9) / 20 for ids in completion_ids]


prompts = ["Sing of snow.", "Sing of the market on a Monday.", "Sing of rain.", "Sing of iron.", "Sing of bees.", "Sing of the tall ships."]
train = Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in prompts]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    per_device_train_batch_size=4,
    num_generations=4,
    max_completion_length=20,
    learning_rate=1e-4,
    weight_decay=0.0,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    seed=19,
)
ShardedTrainer(
    model=os.path.join(HERE, "tiny"), args=args, reward_funcs=[vowel_ratio, tokens], train_dataset=train
).train()
