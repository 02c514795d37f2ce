"""GRPO with a DAPO-like refill: prompts without signal are replaced by ones that have it."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class RefillTrainer(GRPOTrainer):
    """Rows whose group has no spread in its rewards give no gradient; fill their place with useful rows."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = output["advantages"]
        useful = (advantages.abs() > 1e-6).nonzero().flatten()
        if len(useful) == 0 or len(useful) == len(advantages):
            return output
        index = torch.arange(len(advantages))
        empty = (advantages.abs() <= 1e-6).nonzero().flatten()
        for k, row in enumerate(empty.tolist()):
            index[row] = useful[k % len(useful)]
        for key in ("completion_ids", "completion_mask", "advantages"):
            output[key] = output[key][index]
        output["num_items_in_batch"] = output["completion_mask"].sum()
        return output


def exact(completions, answer, **kwargs):
    return [1.0 if c[0]["content"].rstrip().endswith(" " + a) else 0.0 for c, a in zip(completions, answer)]


def build(n):
    rng = random.Random(21)
    names = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn"]
    rows = []
    for i in range(n):
        a, b = (rng.randint(9, 18), rng.randint(3, 9)) if i % 2 else (rng.randint(4, 9), rng.randint(10, 14))
        who = rng.choice(names)
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                    {"role": "user", "content": f"{who} has {a} boxes with {b} pens each. How many pens does {who} have?"},
                ],
                "answer": str(a * b),
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=30,
        learning_rate=1e-5,
        temperature=1.1,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
        seed=4,
    )
    trainer = RefillTrainer(model=MODEL, reward_funcs=exact, args=args, train_dataset=build(64))
    trainer.train()
