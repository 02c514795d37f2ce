"""A calculator environment that keeps score itself.

Each rollout has an environment of its own. The environment counts the calls, remembers the last value and gives the
reward; there is no reward function.
"""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

SFT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")
SYSTEM = "Work out the number. Compute with calculate, one step at a time. Then answer: <answer>...</answer>"


class Calculator:
    def __init__(self):
        self._target = 0
        self._calls = []

    def reset(self, target=0, **kwargs):
        self._target = target
        self._calls = []
        return None

    def calculate(self, expression: str) -> str:
        """
        Compute an expression of numbers, + - * / ** and parentheses, exactly.

        Args:
            expression: For example (3 + 4) * 5.

        Returns:
            The value.
        """
        self._calls.append(expression)
        if not expression or set(expression) - set("0123456789+-*/(). ") or "**" in expression:
            return "invalid"
        return str(eval(expression))[:8]

    def get_reward(self):
        if not self._calls:
            return 0.0
        lengths = sum(len(call) for call in self._calls)
        return 0.5 + float(any(f"{self._target}" in call for call in self._calls)) - 0.02 * lengths


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(SFT, padding_side="left")
    tokenizer.response_template = qwen3_template
    rows = [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"What is {4 + 3 * i} + {9 + i}?"},
            ],
            "target": 13 + 4 * i,
        }
        for i in range(24)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=32, learning_rate=1e-5,
        max_tool_calling_iterations=2, logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=SFT, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        environment_factory=Calculator,
    )
    trainer.train()
