"""GRPO with rows dealt out so that every rank has about the same number of tokens."""
import os
import tempfile

import torch
from accelerate.utils import gather, pad_across_processes
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class BalancedTrainer(GRPOTrainer):
    """Sorts the rows of all ranks by their completion's length and deals them out in turn."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        pad_id = self.processing_class.pad_token_id
        fills = {"prompt_ids": pad_id, "prompt_mask": 0, "completion_ids": pad_id, "completion_mask": 0}
        rows = {}
        for key, fill in fills.items():
            padded = pad_across_processes(batch[key], dim=1, pad_index=fill, pad_first=key.startswith("prompt"))
            rows[key] = gather(padded.contiguous())
        order = torch.argsort(rows["completion_mask"].sum(dim=1), descending=True, stable=True)
        mine = order[self.accelerator.process_index :: self.accelerator.num_processes]
        for key in fills:
            batch[key] = rows[key][mine]
        return batch


def score(completions, answer, **kwargs):
    values = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        values.append(float(truth in text) + 0.05 * len(set(text)))
    return values


def main():
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"What is {a} - {b}?"}], "answer": str(a - b)}
            for a in range(5, 12)
            for b in range(1, 5)
        ]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    BalancedTrainer(model=MODEL, reward_funcs=score, args=args, train_dataset=data).train()


if __name__ == "__main__":
    main()
