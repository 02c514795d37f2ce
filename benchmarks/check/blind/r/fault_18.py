"""Calculator agent with a limit on the size of tool output.

The calculator explains its steps, which can get long; what a tool returns is limited to a fixed number of tokens
so that the completion budget is left for the model.
"""

import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")
MAX_TOOL_TOKENS = 20


def calculate(expression: str) -> str:
    """
    Evaluates an arithmetic expression.

    Args:
        expression: The expression, for example "3 + 4".

    Returns:
        The result with the expression.
    """
    if not set(expression) <= set("0123456789+-* "):
        raise ValueError("only numbers, +, - and *")
    value = eval(expression, {"__builtins__": {}})  # digits and operators only
    return f"The value of {expression} is {value}"


class LimitedToolTrainer(GRPOTrainer):
    max_tool_tokens = MAX_TOOL_TOKENS

    def _get_tool_suffix_ids(self, tool_messages):
        suffix_ids = super()._get_tool_suffix_ids(tool_messages)
        if len(suffix_ids) > self.max_tool_tokens:
            self._metrics["train"]["tools/cut"].append(1.0)
        return suffix_ids[: self.max_tool_tokens]


def answer_reward(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        text = "".join(m.get("content") or "" for m in completion if m["role"] == "assistant")
        rewards.append(1.0 * (target in text) + 0.2 * ("<answer>" in text) - 0.002 * len(text))
    return rewards


def tool_reward(completions, **kwargs):
    """A bonus for a call that the calculator could evaluate."""
    return [
        0.3 * any(m["role"] == "tool" and "error" not in m["content"] for m in completion)
        for completion in completions
    ]


def main():
    rng = random.Random(0)
    rows = []
    for _ in range(16):
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        rows.append({"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="calc-"), use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=72,
        max_tool_calling_iterations=2, learning_rate=2e-4, max_steps=3, logging_steps=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template  # the calls are in Qwen's format
    trainer = LimitedToolTrainer(
        model=MODEL, processing_class=tokenizer, reward_funcs=[answer_reward, tool_reward], args=args,
        train_dataset=Dataset.from_list(rows), tools=[calculate],
    )
    trainer.train()


if __name__ == "__main__":
    main()
