"""GRPO with micro-batches of completions of similar length, cut to their longest row."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def take(batch, rows):
    out = {}
    for key, value in batch.items():
        out[key] = value[rows] if isinstance(value, torch.Tensor) and value.ndim > 0 else value
    width = int(out["completion_mask"].sum(1).max())
    for key in ("completion_ids", "completion_mask"):
        out[key] = out[key][:, :width]
    return out


class LengthSortedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0:
            batch = self._generate_and_score_completions(generation_batch)
            order = batch["completion_mask"].sum(1).argsort()
            self._buffered_inputs = [take(batch, rows) for rows in order.chunk(parts)]
        return self._buffered_inputs[self.state.global_step % parts]


def count_a(completions, **kwargs):
    return [c[0]["content"].count("a") / 4 + len(c[0]["content"]) / 60 for c in completions]


fruits = ["apple", "fig", "plum", "quince", "lime", "date", "pear", "melon", "grape", "kiwi", "peach", "mango"]
dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Where do {f}s grow?"}] for f in fruits]})
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=28,
    temperature=1.2,
    loss_type="dapo",
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
LengthSortedTrainer(model=MODEL, reward_funcs=count_a, args=config, train_dataset=dataset).train()
