"""GRPO at the usual small learning rate, with a reward class and a hint in the prompt."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class StepReward:
    """One point for the number, a little for every step that is right."""

    def __init__(self):
        self.__name__ = "step_reward"

    @staticmethod
    def right_steps(text):
        good = 0
        for part in text.split("<<")[1:]:
            body = part.split(">>")[0]
            if body.count("=") != 1 or body.count("*") != 1:
                continue
            left, right = body.split("=")
            x, y = left.split("*")
            if x.isdigit() and y.isdigit() and right.isdigit():
                good += int(x) * int(y) == int(right)
        return good

    def __call__(self, completions, answer, **kwargs):
        texts = [c[0]["content"] for c in completions]
        return [
            1.0 * t.rstrip().endswith(a) + 0.25 * min(2, self.right_steps(t)) - 0.004 * len(t)
            for t, a in zip(texts, answer)
        ]


def build(seed, n=48):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b, price = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
        question = f"Dev has {a} boxes with {b} pens each. Each costs {price} coins. How many coins do they cost together?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b * price),
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto")
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-6,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=StepReward(), args=args, train_dataset=build(5), processing_class=tokenizer
    )
    trainer.train()
