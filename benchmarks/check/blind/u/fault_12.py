"""Length bucketing.

The rows of a generation batch are sorted by the length of their completions before they are split into micro-batches,
so a micro-batch holds completions of about the same length and its padding can be cut off.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def bucket_by_length(batch):
    lengths = batch["completion_mask"].sum(dim=1)
    order = torch.argsort(lengths, descending=True, stable=True)
    return {
        key: value[order] if isinstance(value, torch.Tensor) and value.dim() == 2 else value
        for key, value in batch.items()
    }


def drop_padding(batch):
    longest = int(batch["completion_mask"].sum(dim=1).max().clamp(min=1))
    for key in ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps"):
        if batch.get(key) is not None:
            batch[key] = batch[key][:, :longest]
    return batch


class BucketedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        every = self.args.steps_per_generation * self.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            batch = bucket_by_length(self._generate_and_score_completions(generation_batch))
            parts = split_tensor_dict(batch, self.args.steps_per_generation)
            self._buffered_inputs = [drop_padding(part) for part in parts]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]


def tidy(completions, **kwargs):
    return [1.0 - sum(not ch.isalnum() for ch in c[0]["content"]) / 32 for c in completions]


def stop(completion_ids, **kwargs):
    return [0.5 * (ids[-1] == 258) for ids in completion_ids]


if __name__ == "__main__":
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Name {n} towns{', please' * (n % 3)}."}] for n in range(2, 42)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4, max_completion_length=32,
        learning_rate=1e-4, beta=0.02, logging_steps=1,
    )
    BucketedTrainer(model=TINY, reward_funcs=[tidy, stop], args=args, train_dataset=data).train()
