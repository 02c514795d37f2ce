"""bnpo with a token budget: a long batch is split into parts that fit, each part trimmed to its longest row."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYS = "Solve the problem step by step. End with #### and the number."


def make(i):
    n, m = 2 + i % 7, 2 + (i * 2) % 9
    q = f"Eve has {n} boxes with {m} cards each."
    q += " Each costs 5 coins. How many coins do they cost together?" if i % 2 else " How many cards does Eve have?"
    return {"prompt": [{"role": "system", "content": SYS}, {"role": "user", "content": q}]}


def spread(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 + c[0]["content"].count("a") / 10 for c in completions]


class TokenBudgetTrainer(GRPOTrainer):
    max_tokens = 100

    def _parts(self, lengths):
        order = torch.argsort(lengths, stable=True).tolist()
        part, width = [], 0
        for row in order:
            widest = max(width, int(lengths[row]))
            if part and widest * (len(part) + 1) > self.max_tokens:
                yield part
                part, widest = [], int(lengths[row])
            part.append(row)
            width = widest
        yield part

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        lengths = inputs["completion_mask"].sum(1)
        rows = lengths.numel()
        total = 0.0
        for part in self._parts(lengths):
            index = torch.tensor(part, device=lengths.device)
            width = int(lengths[index].max())
            small = {}
            for key, value in inputs.items():
                if torch.is_tensor(value) and value.dim() > 0:
                    value = value[index]
                    if key.startswith("completion_") or key.endswith("_logps"):
                        value = value[:, :width]
                small[key] = value
            loss = super().compute_loss(model, small, num_items_in_batch=num_items_in_batch)
            total = total + loss * (len(part) / rows)
        return total


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        loss_type="bnpo",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    TokenBudgetTrainer(
        model=MODEL,
        reward_funcs=spread,
        args=args,
        train_dataset=Dataset.from_list([make(i) for i in range(30)]),
    ).train()
