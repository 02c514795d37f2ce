"""GRPO with gradient accumulation and one flat all-reduce instead of DDP's buckets."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def digit_share(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / max(len(c), 1) for c in completions]


def length_target(completions, **kwargs):
    return [-abs(len(c) - 12) / 12 for c in completions]


class FlatReduceTrainer(GRPOTrainer):
    """Gradients travel in one flat buffer: on our network, few large messages beat DDP's buckets."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        if not isinstance(model, DistributedDataParallel):
            return super().training_step(model, inputs, num_items_in_batch)
        with model.no_sync():
            loss = super().training_step(model, inputs, num_items_in_batch)
        self._reduce(model)
        return loss

    @torch.no_grad()
    def _reduce(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        if self.accelerator.sync_gradients:
            flat /= self.accelerator.num_processes
        for grad, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
            grad.copy_(new)


def main():
    prompts = [f"What is {a} + {b}?" for a in range(2, 8) for b in range(3, 9)]
    dataset = Dataset.from_dict({"prompt": prompts})
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        logging_steps=1,
        learning_rate=3e-5,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=20,
        temperature=1.4,
        loss_type="dr_grpo",
        scale_rewards="none",
    )
    trainer = FlatReduceTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=config,
        train_dataset=dataset,
        reward_funcs=[digit_share, length_target],
    )
    trainer.train()


if __name__ == "__main__":
    main()
