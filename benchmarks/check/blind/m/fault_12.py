"""Length-bucketed micro-batches: rows of similar length share a micro-batch, so that less padding is computed."""
import os
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def bucket_by_length(batch):
    """In place of TRL's random shuffle before the generation batch is cut into micro-batches."""
    order = batch["completion_mask"].sum(dim=1).argsort(descending=True)
    bucketed = dict(batch)
    for key, value in batch.items():
        if isinstance(value, torch.Tensor) and value.ndim == 2:  # padded rows; counters stay as they are
            bucketed[key] = value[order]
    return bucketed


grpo.shuffle_sequence_dict = bucket_by_length


def short_and_numeric(completions, **kwargs):
    return [sum(c.isdigit() for c in t) / max(len(t), 1) - 0.02 * len(t) for t in completions]


def ends_itself(completion_ids, **kwargs):
    return [0.5 if ids[-1] == 258 else -0.5 for ids in completion_ids]


def main():
    prompts = [f"x={a}; y={b}; x*y=" for a in range(2, 9) for b in range(2, 9)]
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[short_and_numeric, ends_itself],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=24,
            loss_type="dapo",
            learning_rate=1e-4,
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
