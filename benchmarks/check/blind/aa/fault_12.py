import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LengthSortedTrainer(GRPOTrainer):
    """Sorts each micro-batch by length and trims it to its longest row, so that short batches are cheap."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return batch
        lengths = batch["completion_mask"].sum(dim=1)
        order = torch.argsort(lengths, descending=True, stable=True)
        longest = int(lengths.max().clamp(min=1))
        result = {}
        for key, value in batch.items():
            if torch.is_tensor(value) and value.dim() == 2:
                value = value[order]
                if not key.startswith("prompt"):
                    value = value[:, :longest]
            result[key] = value
        self._metrics["train"]["batch/width"].append(float(longest))
        return result


def dataset():
    rows = []
    for i in range(44):
        name = ("Hana", "Cleo", "Finn")[i % 3]
        thing = ("coins", "cards", "stamps", "eggs")[i % 4]
        a, b = 2 + (7 * i) % 8, 2 + i % 5
        tail = f" Each costs {b} coins." if i % 3 == 0 else ""
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each.{tail} How many {thing} does {name} have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def compact(completion_ids, **kwargs):
    return [0.5 if len(ids) < 12 else 0.0 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=32,
        learning_rate=2e-4,
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    LengthSortedTrainer(MODEL, [digits, compact], args, train_dataset=dataset()).train()


if __name__ == "__main__":
    main()
