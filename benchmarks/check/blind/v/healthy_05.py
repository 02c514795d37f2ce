"""GRPO with the gradients averaged by hand, once per optimizer step, in one flat tensor."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FlatReduceTrainer(GRPOTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        with model.no_sync():
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            flat = _flatten_dense_tensors(gradients)
            dist.all_reduce(flat)
            flat /= self.accelerator.num_processes
            for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
                gradient.copy_(mean)
        return loss


def reward(completions, completion_ids, **kwargs):
    return [
        0.3 * c[0]["content"].count("4") + 0.1 * c[0]["content"].count("\n") - 0.02 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


if __name__ == "__main__":
    trainer = FlatReduceTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            max_grad_norm=0.2,
            learning_rate=5e-4,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Repeat {n} four times."}]} for n in range(40)]
        ),
    )
    trainer.train()
