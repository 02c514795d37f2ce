"""GRPO with rows dealt out over the ranks by length, and two passes over each batch."""
import os
import tempfile

import torch
from accelerate.utils import gather, pad_across_processes
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LengthBalancedTrainer(GRPOTrainer):
    """All ranks get rows of similar length, so that none waits for another."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        rows = {}
        for key, value in batch.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                continue
            if value.dim() == 2:
                fill = pad_id if key.endswith("_ids") else 0
                value = pad_across_processes(value, dim=1, pad_index=fill, pad_first=key.startswith("prompt"))
            rows[key] = gather(value.contiguous())
        lengths = rows["completion_mask"].sum(dim=1)
        order = torch.argsort(lengths, descending=True, stable=True)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        # there and back again: 0 1 1 0 0 1 1 0
        turns = torch.arange(len(order)) % (2 * world)
        mine = order[torch.minimum(turns, 2 * world - 1 - turns) == rank]
        for key, value in rows.items():
            batch[key] = value[mine]
        return batch


def score(completions, answer, **kwargs):
    values = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        values.append(float(truth in text) + 0.06 * len(set(text)) - 0.02 * len(text))
    return values


def main():
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a} times {b}?"}], "answer": str(a * b)}
        for a in range(1, 14, 3)
        for b in range(1, 9)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    LengthBalancedTrainer(model=MODEL, reward_funcs=score, args=args, train_dataset=Dataset.from_list(rows)).train()


if __name__ == "__main__":
    main()
