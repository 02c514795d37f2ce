"""GRPO with generation in chunks of four, sorted by prompt length, and a reference model that follows the policy."""
import os
import random
import re
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class ChunkedGenerationTrainer(GRPOTrainer):
    chunk = 4

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        order = sorted(range(len(prompt_ids)), key=lambda i: len(prompt_ids[i]))
        completion_ids = [None] * len(prompt_ids)
        for start in range(0, len(order), self.chunk):
            rows = order[start : start + self.chunk]
            part, _ = super()._generate_single_turn(
                [prompt_ids[i] for i in rows], None, {}, num_generations, **kwargs
            )
            for i, ids in zip(rows, part):
                completion_ids[i] = ids
        return completion_ids, None


def sort_by_length(batch):
    """Rows of similar length side by side: every value with one entry per row moves along."""
    rows = batch["completion_mask"].size(0)
    order = torch.argsort(batch["completion_mask"].sum(dim=1), stable=True)
    result = {}
    for key, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dim() >= 1 and value.size(0) == rows:
            result[key] = value[order]
        elif isinstance(value, list):
            result[key] = [value[i] for i in order.tolist()]
        else:
            result[key] = value
    return result


grpo_trainer.shuffle_sequence_dict = sort_by_length


def right(completions, answer, **kwargs):
    return [1.0 if a in re.findall(r"\d+", c) else 0.0 for c, a in zip(completions, answer)]


def digits(completions, **kwargs):
    return [0.1 * len(set(re.findall(r"\d", c))) - 0.01 * len(c) for c in completions]


rng = random.Random(30)
rows = []
for _ in range(60):
    n, p = rng.randint(2, 9), rng.randint(2, 9)
    form = rng.choice(["{} * {} = ", "{} times {} = ", "Sum: {} * {} = "])
    rows.append({"prompt": form.format(n, p), "answer": str(n * p)})
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
    max_completion_length=24, max_steps=4, learning_rate=1e-4, beta=0.05, sync_ref_model=True, ref_model_sync_steps=2,
    ref_model_mixup_alpha=0.5, bf16=False, use_cpu=True, logging_steps=1, report_to="none", save_strategy="no",
)
trainer = ChunkedGenerationTrainer(
    model=os.path.join(HERE, "tiny"), reward_funcs=[right, digits], args=args, train_dataset=Dataset.from_list(rows)
)
trainer.train()
