"""Length buckets for Dr. GRPO.

The rows of a generation batch, all tensors alike, are sorted by the length of their completions before they are split
into micro-batches, and the padding that a whole micro-batch shares is cut off on both sides.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def by_length(batch):
    order = torch.argsort(batch["completion_mask"].sum(1), stable=True)
    return {k: v[order] if isinstance(v, torch.Tensor) and v.dim() > 0 else v for k, v in batch.items()}


def cut(part):
    part = dict(part)
    right = int(part["completion_mask"].sum(1).max().clamp(min=1))
    left = int(part["prompt_mask"].argmax(1).min())
    for key in ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps"):
        if part.get(key) is not None:
            part[key] = part[key][:, :right]
    for key in ("prompt_ids", "prompt_mask"):
        part[key] = part[key][:, left:]
    return part


class BucketTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = by_length(self._generate_and_score_completions(generation_batch))
            self._buffered_inputs = [cut(part) for part in split_tensor_dict(batch, parts)]
        return self._buffered_inputs[self._step % parts]


def letters(completions, **kwargs):
    return [sum(ch.isalpha() for ch in c[0]["content"]) / 30 for c in completions]


def distinct(completion_ids, **kwargs):
    return [len(set(ids)) / 24 for ids in completion_ids]


if __name__ == "__main__":
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Tell{' me' * (n % 4)} about {n} ships."}] for n in range(2, 42)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4, num_iterations=2,
        max_completion_length=24, learning_rate=5e-5, loss_type="dr_grpo", scale_rewards="none", logging_steps=1,
    )
    BucketTrainer(model=TINY, reward_funcs=[letters, distinct], args=args, train_dataset=data).train()
