import os
import random
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def reduce_in_half(group, bucket):
    """Sends the gradients in half of the bytes: our two machines share a slow network."""
    small = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(small, group=group, async_op=True).get_future()

    def restore(done):
        buffer = bucket.buffer()
        buffer.copy_(done.value()[0])
        return buffer

    return future.then(restore)


class SlowNetwork(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(dist.group.WORLD, reduce_in_half)


def make_dataset():
    rng = random.Random(4)
    rows = []
    for _ in range(48):
        a, b = rng.randint(1, 50), rng.randint(1, 50)
        rows.append({"prompt": f"Q: Which is larger, {a} or {b}?\nA:", "larger": str(max(a, b)), "other": str(min(a, b))})
    return Dataset.from_list(rows)


def larger_named(completions, larger, other, **kwargs):
    return [float(x in c) - 0.5 * float(y in c) for c, x, y in zip(completions, larger, other)]


def not_too_long(completion_ids, **kwargs):
    return [1.0 - len(ids) / 20 for ids in completion_ids]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_grad_norm=5.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    network = SlowNetwork()
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[larger_named, not_too_long],
        train_dataset=make_dataset(),
        callbacks=[network],
    )
    network.trainer = trainer
    trainer.train()
