"""GRPO with several updates per batch; log-probabilities are computed in micro-batches of similar length."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
TOKENS_PER_MICRO_BATCH = 160


def balanced_partitions(lengths, budget):
    """Groups row indices, longest first, so that no group has more than `budget` tokens."""
    order = torch.argsort(lengths, descending=True, stable=True).tolist()
    groups, current, used = [], [], 0
    for i in order:
        size = int(lengths[i])
        if current and used + size > budget:
            groups.append(current)
            current, used = [], 0
        current.append(i)
        used += size
    if current:
        groups.append(current)
    return groups


class DynamicBatchTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **kwargs
            )
        logps = []
        for rows in balanced_partitions(attention_mask.sum(dim=1), TOKENS_PER_MICRO_BATCH):
            part, _, _ = super()._get_per_token_logps_and_entropies(
                model, input_ids[rows], attention_mask[rows], logits_to_keep
            )
            logps.append(part)
        return torch.cat(logps, dim=0), None, None


def accuracy(completions, label, **kwargs):
    scores = []
    for completion, expected in zip(completions, label):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(1.0 if numbers and numbers[-1] == expected else 0.1 * len(numbers))
    return scores


def words(completions, **kwargs):
    return [0.05 * len(completion[0]["content"].split()) for completion in completions]


def make_dataset():
    rows = []
    for i, who in enumerate(["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]):
        a, b = 11 + i, 19 - i
        tail = f" How many toys does {who} have?" if i % 2 else " Each costs 3 coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} toys each.{tail}"},
                ],
                "label": str(a * b if i % 2 else 3 * a * b),
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=28,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    DynamicBatchTrainer(MODEL, [accuracy, words], args, train_dataset=make_dataset()).train()
