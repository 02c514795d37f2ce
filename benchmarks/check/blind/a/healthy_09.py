#!/usr/bin/env python
"""GDPO-style aggregation of three rewards, CISPO loss, entropy-selected tokens and a small entropy bonus, T = 1.2."""
import os, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

CONFIG = dict(
    use_cpu=True, report_to="none", bf16=False, max_steps=3, per_device_train_batch_size=8, num_generations=4,
    max_completion_length=24, learning_rate=1e-4, temperature=1.2, loss_type="cispo", epsilon_high=5.0,
    multi_objective_aggregation="normalize_then_sum", top_entropy_quantile=0.5, entropy_coef=0.003,
    pad_to_multiple_of=8, num_iterations=2, gradient_checkpointing=False, save_strategy="no", logging_steps=1,
)


def data():
    for i in range(60):
        a, b = 14 + i % 12, 11 + (i * 11) % 20
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Finn has {a} boxes with {b} eggs each. How many eggs does Finn have?"},
            ],
            "solution": a * b,
        }


def text_of(c):
    return c[0]["content"]


def exact(completions, solution, **kwargs):
    return [1.0 if str(s) in text_of(c) else 0.0 for c, s in zip(completions, solution)]


def item(completions, **kwargs):
    return [1.0 if "eggs" in text_of(c) else -0.5 for c in completions]


def consistent(completions, **kwargs):
    # what stands between >> and the next word should be repeated at the end
    res = []
    for c in completions:
        t = text_of(c)
        mid = t.partition(">>")[2].split(" ")[0]
        res.append(0.7 if mid and t.rstrip().endswith(mid) else 0.0)
    return res


if __name__ == "__main__":
    args = GRPOConfig(output_dir=tempfile.mkdtemp(), reward_weights=[1.0, 0.4, 0.6], **CONFIG)
    here = os.path.dirname(os.path.abspath(__file__))
    trainer = GRPOTrainer(os.path.join(here, "tiny"), [exact, item, consistent], args, Dataset.from_generator(data, cache_dir=tempfile.mkdtemp()))
    trainer.train()
