import os
import tempfile
import time

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SortedTrainer(GRPOTrainer):
    """Longest rows first within a micro-batch, and no columns that are padding for all of them."""

    def _prepare_inputs(self, generation_batch):
        inputs = dict(super()._prepare_inputs(generation_batch))
        lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        rows = len(order)
        for key, value in inputs.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows:
                inputs[key] = value[order]
        left = int(inputs["prompt_mask"].sum(1).max())
        for key in ("prompt_ids", "prompt_mask"):
            inputs[key] = inputs[key][:, -left:]
        return inputs

    def training_step(self, model, inputs, num_items_in_batch=None):
        start = time.perf_counter()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._metrics["train"]["seconds"].append(time.perf_counter() - start)
        return loss


def reward(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [0.1 * len(set(t)) - 0.005 * len(t) for t in texts]


subjects = ["kites", "a very long bridge over a slow river", "tea", "mountain huts in the winter", "ink", "gears"]
data = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"{verb} {s}."}] for s in subjects for verb in ("Explain", "Praise", "List")]}
)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-4,
    lr_scheduler_type="polynomial",
    pad_to_multiple_of=8,
    mask_truncated_completions=True,
    loss_type="dr_grpo",
    scale_rewards="none",
    per_device_train_batch_size=6,
    gradient_accumulation_steps=2,
    num_generations=6,
    max_completion_length=24,
)
SortedTrainer(model=MODEL, args=args, reward_funcs=reward, train_dataset=data).train()
