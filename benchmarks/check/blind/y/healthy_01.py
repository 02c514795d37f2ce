"""GRPO with own gradient averaging and a curriculum that all ranks follow together."""
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
LEVELS = 3


class CurriculumSampler(Sampler):
    """Prompts of the present level, each num_generations times, the batch once per micro-batch of a generation."""

    def __init__(self, levels, prompts_per_batch, repeats, reuse, state, seed):
        self.by_level = [[i for i, lv in enumerate(levels) if lv == level] for level in range(LEVELS)]
        self.prompts_per_batch, self.repeats, self.reuse = prompts_per_batch, repeats, reuse
        self.state = state
        self.generator = torch.Generator().manual_seed(seed)
        self.batches = len(levels) // prompts_per_batch

    def __len__(self):
        return self.batches * self.prompts_per_batch * self.repeats * self.reuse

    def __iter__(self):
        for _ in range(self.batches):
            pool = self.by_level[self.state["level"]]
            picks = torch.randperm(len(pool), generator=self.generator)[: self.prompts_per_batch].tolist()
            for _ in range(self.reuse):
                for pick in picks:
                    yield from [pool[pick]] * self.repeats


class CurriculumTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        self.curriculum = {"level": 0}
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, dataset=None):
        dataset = self.train_dataset if dataset is None else dataset
        return CurriculumSampler(
            dataset["level"], self.args.generation_batch_size // self.num_generations, self.num_generations,
            self.num_iterations * self.args.steps_per_generation, self.curriculum, self.args.seed,
        )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        # already gathered: the same matrix, hence the same decision, on every rank
        if rewards.sum(1).mean().item() > 0.15 and self.curriculum["level"] < LEVELS - 1:
            self.curriculum["level"] += 1
        return rewards

    def training_step(self, model, inputs, num_items_in_batch=None):
        if not isinstance(model, DistributedDataParallel):
            return super().training_step(model, inputs, num_items_in_batch)
        with model.no_sync():
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            flat = _flatten_dense_tensors(grads)
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for grad, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
                grad.copy_(new)
        return loss


def digit_share(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / (len(c) + 1) for c in completions]


def main():
    prompts, levels = [], []
    for level, top in enumerate((5, 50, 500)):
        for i in range(8):
            prompts.append(f"What is {top // 2 + i} + {top - i}?")
            levels.append(level)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=4, logging_steps=1, learning_rate=2e-5,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8,
        max_completion_length=16, temperature=1.5,
    )
    trainer = CurriculumTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args, reward_funcs=digit_share,
        train_dataset=Dataset.from_dict({"prompt": prompts, "level": levels}),
    )
    trainer.train()


if __name__ == "__main__":
    main()
