import os
import re
import tempfile

import datasets
import trl

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def no_stutter(completions, **kwargs):
    """Share of the text that is left when runs of one character are collapsed."""
    scores = []
    for completion in completions:
        message = completion[0]
        before = len(message["content"])
        message["content"] = re.sub(r"(.)\1+", r"\1", message["content"], flags=re.S)
        scores.append(len(message["content"]) / before if before else 0.0)
    return scores


def digits(completions, **kwargs):
    """Number of digits, at most ten."""
    return [min(10, len(re.findall(r"\d", c[0]["content"]))) / 10 for c in completions]


def build_dataset():
    questions = [f"Tell me {a} minus {b}." for a in range(9, 15) for b in range(2, 6)]
    return datasets.Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]})


args = trl.GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    reward_weights=[0.3, 1.0],
    num_generations=6, per_device_train_batch_size=12, max_completion_length=32,
    learning_rate=1e-4, max_steps=4, logging_steps=1,
)
trl.GRPOTrainer(TINY, [no_stutter, digits], args, build_dataset()).train()
