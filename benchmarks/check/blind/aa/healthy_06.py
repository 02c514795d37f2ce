import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


class BucketTrainer(GRPOTrainer):
    """Orders the rows of a micro-batch from short to long and drops columns that are padding in all rows."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        rows = batch["completion_ids"].size(0)
        lengths = batch["completion_mask"].sum(dim=1)
        order = lengths.argsort(stable=True)
        right = int(lengths.max())
        left = int(batch["prompt_mask"].sum(dim=1).max())
        result = {}
        for key, value in batch.items():
            if torch.is_tensor(value) and value.dim() > 0 and value.size(0) == rows:
                value = value.index_select(0, order)
                if key in ("prompt_ids", "prompt_mask"):
                    value = value[:, value.size(1) - left:]
                elif value.dim() == 2:
                    value = value[:, :right]
            result[key] = value
        return result


def problems():
    for i in range(48):
        name, thing = ("Finn", "Cleo")[i % 2], ("toys", "cards", "stamps", "apples", "coins")[i % 5]
        a, b = 2 + (3 * i) % 7, 3 + i % 4
        tail = f" Finn has {a} {thing}." if i % 3 == 1 else ""
        yield {"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"{name} has {a} boxes with {b} {thing} each.{tail} How many {thing} does {name} have?"},
        ]}


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (len(c[0]["content"]) + 1) for c in completions]


def stars(completions, **kwargs):
    return [0.1 * c[0]["content"].count("*") for c in completions]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        num_iterations=1,
        steps_per_generation=4,
        max_completion_length=32,
        learning_rate=3e-4,
        loss_type="dapo",
        beta=0.02,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = BucketTrainer(
        os.path.join(HERE, "tiny"), [digits, stars], args, train_dataset=Dataset.from_list(list(problems()))
    )
    trainer.train()
