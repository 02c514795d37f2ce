"""GRPO with gradient accumulation, micro-batches grouped by length."""
import os
import re
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def group_by_length(batch):
    """Replaces the random shuffle of a generation batch: rows of similar length share a micro-batch."""
    lengths = batch["completion_mask"].sum(dim=1)
    order = torch.argsort(lengths + torch.rand(lengths.shape) * 0.5, descending=True)

    def permute(value):
        if isinstance(value, torch.Tensor):
            return value[order] if value.ndim > 1 else value
        if isinstance(value, list):
            return [value[i] for i in order.tolist()]
        return value

    return {key: permute(value) for key, value in batch.items()}


grpo_trainer.shuffle_sequence_dict = group_by_length


def solved(completions, answer, **kwargs):
    result = []
    for completion, value in zip(completions, answer):
        numbers = [int(x[:6]) for x in re.findall(r"\d+", completion[0]["content"])]
        error = abs(numbers[-1] - value) / value if numbers else 1.0
        result.append(max(0.0, 1.0 - error))
    return result


def format_reward(completions, **kwargs):
    result = []
    for completion in completions:
        text = completion[0]["content"]
        result.append(0.2 * (">>" in text) + 0.2 * ("answer" in text) + 0.2 * ("####" in text))
    return result


def brief(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def data():
    rows = []
    for i, who in enumerate(["Hana", "Gus", "Finn", "Eve", "Dev", "Cleo", "Ben", "Ada"]):
        a, b = 10 + i, 20 - i
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} shells each. How many shells does {who} have?"},
                ],
                "answer": a * b,
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=24,
        loss_type="bnpo",
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    GRPOTrainer(MODEL, [solved, format_reward, brief], args, train_dataset=data()).train()
