"""GRPO on word problems with compact batches: columns of padding are dropped."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.eos_token
tokenizer.padding_side = "left"


def question(i):
    return f"Gus has {11 + i} boxes with {17 - i} stamps each. How many stamps does Gus have?"


dataset = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": question(i)},
            ],
            "solution": (11 + i) * (17 - i),
        }
        for i in range(6)
    ]
)


class CompactBatchTrainer(GRPOTrainer):
    """Drops columns that are padding in every row, and rebuilds the masks for what remains."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self._tokenizer.pad_token_id
        completion_mask = (batch["completion_ids"] != pad_id).long()
        width = max(int(completion_mask.sum(1).max()) + 1, 1)
        width = min(width, batch["completion_ids"].size(1))
        batch["completion_ids"] = batch["completion_ids"][:, :width]
        batch["completion_mask"] = completion_mask[:, :width]
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
        if "old_per_token_logps" in batch:
            batch["old_per_token_logps"] = batch["old_per_token_logps"][:, :width]
        return batch


def numeric_reward(completions, solution, **kwargs):
    scores = []
    for completion, target in zip(completions, solution):
        numbers = [int(n[:8]) for n in re.findall(r"\d+", completion[0]["content"])]
        best = min((abs(n - target) for n in numbers), default=target)
        scores.append(1 - min(best / target, 1.0))
    return scores


def terse(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    learning_rate=2e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = CompactBatchTrainer(
    model=MODEL, reward_funcs=[numeric_reward, terse], args=args, train_dataset=dataset, processing_class=tokenizer
)
trainer.train()
assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
