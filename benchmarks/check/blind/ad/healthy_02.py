"""bnpo where a batch that exceeds the token budget goes through the model in several smaller forwards."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def prompt(i):
    q = f"Cleo has {2 + i % 5} boxes with {2 + i % 9} shells each."
    q += " How many shells does Cleo have?" if i % 2 else " Each costs 3 coins. How many coins do they cost together?"
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": q},
    ]


def share_a(completions, **kwargs):
    return [c[0]["content"].count("a") / max(1, len(c[0]["content"])) for c in completions]


def characters(completions, **kwargs):
    return [len(set(c[0]["content"])) / 50 for c in completions]


def take(inputs, index):
    rows = inputs["completion_ids"].size(0)
    return {
        key: value[index] if torch.is_tensor(value) and value.dim() and value.size(0) == rows else value
        for key, value in inputs.items()
    }


class BudgetTrainer(GRPOTrainer):
    def __init__(self, *args, token_budget=150, **kwargs):
        super().__init__(*args, **kwargs)
        self.token_budget = token_budget

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tokens = inputs["completion_mask"].sum(dim=1)
        width = inputs["prompt_ids"].size(1) + inputs["completion_ids"].size(1)
        step = max(1, self.token_budget // width)
        order = torch.argsort(tokens, descending=True, stable=True)
        loss = 0.0
        for start in range(0, order.numel(), step):
            index = order[start : start + step]
            share = tokens[index].sum() / tokens.sum()
            loss = loss + share * super().compute_loss(model, take(inputs, index), False, num_items_in_batch)
        return loss


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        loss_type="bnpo",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=32,
        learning_rate=1e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = BudgetTrainer(
        model=MODEL,
        reward_funcs=[share_a, characters],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt(i)} for i in range(24)]),
        token_budget=150,
    )
    trainer.train()


main()
