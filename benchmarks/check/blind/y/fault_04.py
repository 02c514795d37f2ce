"""GRPO on generated arithmetic."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
OPS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def make_problems(n, low=2, high=30):
    """n problems with two operands each, all different."""
    seen, rows = set(), []
    while len(rows) < n:
        a, b, op = random.randint(low, high), random.randint(low, high), random.choice(list(OPS))
        if (a, b, op) in seen:
            continue
        seen.add((a, b, op))
        rows.append({
            "prompt": [{"role": "user", "content": f"What is {a} {op} {b}?"}],
            "answer": OPS[op](a, b),
        })
    return Dataset.from_list(rows)


def closeness(completions, answer, **kwargs):
    """1 for the right number, less the further the last number of the text is away."""
    scores = []
    for completion, target in zip(completions, answer):
        numbers = re.findall(r"-?\d+", completion[0]["content"])
        if not numbers:
            scores.append(-0.5)
            continue
        guess = int(numbers[-1][:6])
        scores.append(1.0 / (1.0 + abs(guess - target) / 20))
    return scores


def terse(completions, **kwargs):
    return [-len(c[0]["content"]) / 200 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=4,
        logging_steps=1,
        learning_rate=1e-5,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        temperature=1.5,
        seed=3,
        loss_type="dapo",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=args,
        reward_funcs=[closeness, terse],
        train_dataset=make_problems(64),
    )
    trainer.train()


if __name__ == "__main__":
    main()
