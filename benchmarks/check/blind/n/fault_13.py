"""GRPO without padding: the rows of a batch are packed into one sequence for the forward pass."""
import os
import re
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class PackedTrainer(GRPOTrainer):
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        keep = attention_mask.bool()
        packed_ids = input_ids[keep].unsqueeze(0)
        position_ids = (attention_mask.cumsum(dim=-1) - 1)[keep].unsqueeze(0)
        logits = model(
            input_ids=packed_ids,
            attention_mask=torch.ones_like(packed_ids),
            position_ids=position_ids,
            use_cache=False,
        ).logits[0, :-1]
        logps = (logits.float() / self.temperature).log_softmax(dim=-1)
        token_logps = logps.gather(-1, packed_ids[0, 1:].unsqueeze(-1)).squeeze(-1)
        token_entropy = -(logps.exp() * logps).sum(-1).detach()

        def unpack(values):
            values = F.pad(values, (1, 0))
            rows = values.new_zeros(input_ids.shape).masked_scatter(keep, values)
            return rows[:, -logits_to_keep:]

        return unpack(token_logps), unpack(token_entropy) if compute_entropy else None, None


def right_answer(completions, answer, **kwargs):
    rewards = []
    for completion, value in zip(completions, answer):
        numbers = re.findall(r"\d+", completion[0]["content"])
        rewards.append(float(str(value) in numbers) + 0.1 * len(set(numbers)))
    return rewards


def compact(completion_ids, **kwargs):
    return [(24 - len(ids)) / 24 for ids in completion_ids]


def make(i):
    who = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"][i]
    a, b = 12 + i, 16 - i
    extra = " Each costs 2 coins. How many coins do they cost together?" if i % 2 else f" How many pens does {who} have?"
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{who} has {a} boxes with {b} pens each.{extra}"},
        ],
        "answer": a * b * (2 if i % 2 else 1),
    }


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=24,
        gradient_checkpointing=False,
        learning_rate=5e-5,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    PackedTrainer(
        MODEL, [right_answer, compact], args, train_dataset=Dataset.from_list([make(i) for i in range(6)])
    ).train()


if __name__ == "__main__":
    main()
