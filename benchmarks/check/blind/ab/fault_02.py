"""GRPO with our own gradient exchange (gloo on the CPU boxes is slow with DDP's buckets)."""
import os
import tempfile

import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def letter_e(completions, **kwargs):
    return [c[0]["content"].count("e") / (1 + len(c[0]["content"])) for c in completions]


def length_bonus(completion_ids, **kwargs):
    return [min(len(ids), 16) / 16 for ids in completion_ids]


class ExchangeTrainer(GRPOTrainer):
    def training_step(self, model, inputs, num_items_in_batch):
        with self.accelerator.no_sync(model):
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.exchange(model)
        return loss

    def exchange(self, model):
        world = self.accelerator.num_processes
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        handles = [dist.all_reduce(g, op=dist.ReduceOp.SUM, async_op=True) for g in grads]
        for handle in handles:
            handle.wait()
        if self.accelerator.sync_gradients:
            for g in grads:
                g.div_(world)


questions = [
    "What is a fjord?",
    "Name a fruit that is green.",
    "How do bees find their way home in the evening?",
    "Why is the sky red at dusk?",
    "What does a cooper make?",
    "Where do eels go?",
    "Who invented the zipper and when was that?",
    "What is lichen?",
]
train_set = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})

config = GRPOConfig(
    output_dir=tempfile.mkdtemp(prefix="exchange"),
    max_steps=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=20,
    learning_rate=1e-4,
    max_grad_norm=100.0,
    warmup_steps=0,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    seed=11,
)

trainer = ExchangeTrainer(
    model=TINY,
    args=config,
    reward_funcs=[letter_e, length_bonus],
    train_dataset=train_set,
)
trainer.train()
