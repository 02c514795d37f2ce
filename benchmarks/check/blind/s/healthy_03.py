"""An environment that makes its own tasks.

There is no dataset: `reset` draws two numbers and asks for their sum, the model may call `calculate`, and the
environment scores the episode from what it saw.
"""

import itertools
import os
import re
import tempfile

from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")
GROUP = 4


class Tasks:
    """Hands out the same task to the members of a group."""

    def __init__(self):
        self.count = itertools.count()

    def next(self):
        n = next(self.count) // GROUP
        return 3 + 7 * (n % 9), 2 + 5 * (n % 11)


TASKS = Tasks()


class SumEnvironment:
    def __init__(self):
        self.calls = []
        self.target = None

    def reset(self, **kwargs) -> str:
        a, b = TASKS.next()
        self.calls = []
        self.target = a + b
        return f"What is {a} + {b}?"

    def calculate(self, expression: str) -> str:
        """Compute an expression of numbers, + - * / ** and parentheses, exactly.

        Args:
            expression: For example (3 + 4) * 5.
        """
        self.calls.append(expression)
        numbers = [int(n) for n in re.findall(r"\d{1,6}", expression)]
        return str(sum(numbers))

    def get_reward(self) -> float:
        if not self.calls:
            return -0.5
        numbers = [int(n) for n in re.findall(r"\d{1,6}", self.calls[0])]
        error = abs(sum(numbers) - self.target) / 1000
        return 1.0 / (1.0 + error) - 0.02 * len(self.calls[0]) - 0.05 * (len(self.calls) - 1)


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=GROUP,
            max_completion_length=48,
            max_tool_calling_iterations=2,
            max_steps=3,
            learning_rate=1e-4,
            loss_type="dr_grpo",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL, args=args, processing_class=tokenizer, environment_factory=SumEnvironment
        )
        trainer.train()


if __name__ == "__main__":
    main()
