"""Micro-batches without needless padding: rows are ordered by length and the batch is trimmed to its longest
completion before the forward pass. Saves about a third of the compute with uneven completions.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
ROW_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps")
COMPLETION_KEYS = ("completion_ids", "completion_mask", "old_per_token_logps")


class CompactBatchTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        batch = dict(super()._prepare_inputs(generation_batch))
        lengths = batch["completion_mask"].sum(dim=1)
        order = lengths.argsort(descending=True)
        for key in ROW_KEYS:
            if batch.get(key) is not None:
                batch[key] = batch[key][order]
        longest = int(lengths.max())
        for key in COMPLETION_KEYS:
            if batch.get(key) is not None:
                batch[key] = batch[key][:, :longest]
        self._metrics["train" if self.model.training else "eval"]["batch/longest"].append(float(longest))
        return batch


def ascii_art_penalty(completions, **kwargs):
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        odd = sum(not (c.isalnum() or c.isspace()) for c in text)
        rewards.append(-odd / max(len(text), 1))
    return rewards


def target_length(completion_ids, **kwargs):
    return [-abs(len(ids) - 10) / 10 for ids in completion_ids]


def main():
    animals = ["owl", "fox", "bear", "hare", "wolf", "frog", "crow", "deer", "mole", "swan"]
    dataset = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"What does the {animal} do?"}] for animal in animals],
    })
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="compact-"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=4e-4,
        max_steps=3,
        logging_steps=1,
        seed=7,
    )
    trainer = CompactBatchTrainer(
        model=MODEL, reward_funcs=[ascii_art_penalty, target_length], args=args, train_dataset=dataset
    )
    trainer.train()


if __name__ == "__main__":
    main()
