"""Compact micro-batches: rows by length, padding trimmed on both sides.

Every tensor with one entry per row moves along, so only the padding changes.
"""

import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ON_COMPLETION = ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps")
ON_PROMPT = ("prompt_ids", "prompt_mask")


def compact(batch):
    rows = batch["completion_ids"].size(0)
    order = (batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)).argsort(descending=True)
    out = {}
    for key, value in batch.items():
        per_row = isinstance(value, torch.Tensor) and value.dim() > 0 and value.size(0) == rows
        out[key] = value[order] if per_row else value
    longest_prompt = int(out["prompt_mask"].sum(1).max())
    longest_completion = int(out["completion_mask"].sum(1).max())
    for key in ON_PROMPT:
        out[key] = out[key][:, out[key].size(1) - longest_prompt:]
    for key in ON_COMPLETION:
        if out.get(key) is not None:
            out[key] = out[key][:, :longest_completion]
    return out


class CompactTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        return compact(super()._prepare_inputs(generation_batch))


def quiet(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        loud = sum(c.isupper() or c in "!{}<>\"" for c in text)
        rewards.append(1.0 - loud / max(len(text), 1))
    return rewards


def ten_tokens(completion_ids, **kwargs):
    return [-abs(len(ids) - 10) / 10 for ids in completion_ids]


def main():
    prompts = [
        "Go on.", "Tell me about the winter when the river froze and the mill stood still.", "Why not?",
        "What did the old man keep in the box under his bed?", "Left or right?",
        "Explain how to get from the station to the market on foot.", "Again.",
        "Which of the three sisters married the miller, and why?", "Now?", "Say something about tea and cake.",
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="compact-"), use_cpu=True, report_to=[], save_strategy="no",
        beta=0.02, num_iterations=2, importance_sampling_level="sequence", loss_type="grpo",
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=24, learning_rate=5e-4, max_steps=3, logging_steps=1,
    )
    trainer = CompactTrainer(
        model=MODEL, reward_funcs=[quiet, ten_tokens], args=args,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in prompts]}),
    )
    trainer.train()


if __name__ == "__main__":
    main()
