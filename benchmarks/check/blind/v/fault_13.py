"""GRPO with two rewards of very different size, brought to the same scale before they are added."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def standardised(func):
    def wrapped(completions, **kwargs):
        raw = torch.tensor(func(completions, **kwargs), dtype=torch.float32)
        return ((raw - raw.mean()) / (raw.std() + 1e-6)).tolist()

    wrapped.__name__ = func.__name__
    return wrapped


@standardised
def characters(completions, **kwargs):
    return [-float(len(c[0]["content"])) for c in completions]


@standardised
def correctness(completions, answer, **kwargs):
    values = []
    for completion, truth in zip(completions, answer):
        text = completion[0]["content"]
        values.append(0.01 * (truth in text) + 0.001 * sum(ch.isdigit() for ch in text))
    return values


def main():
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a} + {a + 3}?"}], "answer": str(2 * a + 3)}
        for a in range(40)
    ]
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[characters, correctness],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=8,
            max_completion_length=20,
            reward_weights=[0.3, 1.0],
            learning_rate=1e-3,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
