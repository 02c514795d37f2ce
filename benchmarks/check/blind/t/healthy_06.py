"""An environment that makes its own tasks and rewards: reach a number by adding and doubling. No dataset."""
import os
import tempfile

from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Reach:
    """State: a value and a target."""

    made = 0

    def __init__(self):
        Reach.made += 1
        self.value, self.target, self.calls = 0, 0, 0

    def reset(self, **kwargs):
        self.value, self.target, self.calls = 1, 7, 0
        return f"Start with {self.value}, then add {self.target - 1}. What is the result?"

    def calculate(self, expression: str) -> str:
        """
        Compute an expression of numbers, + - * / ** and parentheses, exactly.

        Args:
            expression: For example (3 + 4) * 5.
        """
        self.calls += 1
        if len(expression) > 24 or set(expression) - set("0123456789+-* "):
            raise ValueError("not understood")
        self.value = eval(expression, {"__builtins__": {}})
        return str(self.value)

    def get_reward(self):
        return 1.0 / (1 + abs(self.value - self.target)) + 0.1 * min(self.calls, 2)


def lengths(completion_ids, environments, **kwargs):
    return [-0.01 * len(ids) - 0.02 * env.calls for ids, env in zip(completion_ids, environments)]


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(TINY, "sft"), padding_side="left")
    tokenizer.response_template = qwen3_template  # tool calls are written as in Qwen3
    trainer = GRPOTrainer(
        processing_class=tokenizer,
        model=os.path.join(TINY, "sft"),
        reward_funcs=lengths,
        environment_factory=Reach,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            max_steps=3,
            per_device_train_batch_size=8,
            num_generations=4,
            num_iterations=2,
            max_completion_length=32,
            max_tool_calling_iterations=2,
            learning_rate=5e-5,
            loss_type="vespo",
            logging_steps=1,
        ),
    )
    trainer.train()
