"""Tools that the model may call: typed functions with docstrings."""

from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, chat_template_utils

TINY = str(Path(__file__).resolve().parents[3] / "models" / "tiny")

# TRL does not know this family's chat template, and has to be told how to find calls in what it says
tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
tokenizer.response_template = chat_template_utils.qwen3_template

dataset = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": f"What is {a} times {b}?"}]}
        for a in range(2, 6)
        for b in range(2, 6)
    ]
)


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        Their product.
    """
    return a * b


def distinct(completions, **kwargs):
    return [float(len(set(str(completion)))) for completion in completions]


trainer = GRPOTrainer(
    model=TINY,
    args=GRPOConfig(use_cpu=True),
    processing_class=tokenizer,
    reward_funcs=distinct,
    train_dataset=dataset,
    tools=[multiply],
)
trainer.train()
