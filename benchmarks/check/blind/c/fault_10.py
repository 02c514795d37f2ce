"""GRPO with gradient accumulation and a trainer that watches memory and gradients."""
import os
import random
import resource
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class WatchingTrainer(GRPOTrainer):
    peak = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        # free what the previous backward pass left before the generation needs memory
        model.zero_grad(set_to_none=True)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.peak = max(self.peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return loss

    def log(self, logs, *args, **kwargs):
        logs["peak_gb"] = self.peak / 1024**2
        super().log(logs, *args, **kwargs)


class Grader:
    __name__ = "grader"

    def __init__(self, bonus=0.2):
        self.bonus = bonus

    def __call__(self, completions, expected, **kwargs):
        out = []
        for messages, truth in zip(completions, expected):
            text = messages[0]["content"]
            value = 1.0 if text.split(" ")[-1].strip() == truth else 0.0
            out.append(value + self.bonus * ("=" in text) - 0.006 * len(text))
        return out


def load():
    rng = random.Random(44)
    records = []
    while len(records) < 64:
        a, b, c = rng.randint(2, 8), rng.randint(2, 5), rng.randint(2, 5)
        text = f"Finn has {a} boxes with {b} cards each. Each costs {c} coins. How many coins do they cost together?"
        records.append({"question": text, "expected": str(a * b * c)})
    data = Dataset.from_list(records)
    return data.map(
        lambda row: {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
        },
        remove_columns=["question"],
    ).shuffle(seed=1)


if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=28,
        learning_rate=1e-5,
        loss_type="dapo",
        epsilon_high=0.28,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = WatchingTrainer(model=MODEL, reward_funcs=Grader(), args=config, train_dataset=load())
    trainer.train()
