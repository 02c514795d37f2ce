"""Two passes over each batch of rollouts, with micro-batches sorted by length and trimmed.

Padding costs a lot on CPU. Within every micro-batch the rows are sorted by completion length (longest first) and the
columns that are padding in all rows are cut off.
"""

import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

ROW_KEYS = ["prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"]
COLUMN_KEYS = ["completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps"]


def sort_and_trim(batch):
    lengths = batch["completion_mask"].sum(dim=1)
    order = lengths.argsort(descending=True)
    batch = dict(batch)
    for key in ROW_KEYS:
        if batch.get(key) is not None:
            batch[key] = batch[key][order]
    longest = max(int(lengths.max()), 1)
    for key in COLUMN_KEYS:
        if batch.get(key) is not None:
            batch[key] = batch[key][:, :longest]
    return batch


class TrimmedTrainer(GRPOTrainer):
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        return sort_and_trim(inputs) if self.model.training else inputs


def reward_end(completions, **kwargs):
    """Stop early, but not at once."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"]
        rewards.append(-abs(len(text) - 6) / 10 + 0.1 * text.count("9"))
    return rewards


def main():
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Give me item {i} of the list."}] for i in range(1, 9)]}
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_iterations=2,
            num_generations=4,
            max_completion_length=24,
            max_steps=3,
            learning_rate=1e-4,
            epsilon=0.2,
            epsilon_high=0.28,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = TrimmedTrainer(model=MODEL, reward_funcs=reward_end, args=args, train_dataset=dataset)
        trainer.train()


if __name__ == "__main__":
    main()
