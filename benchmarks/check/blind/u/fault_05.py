"""Calculator agent with short tool results.

Some tools return long text. To leave room for the model's own tokens, what a tool returns may take at most
`max_tool_tokens` tokens of the completion.
"""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

SFT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")
SYSTEM = "Work out the number. Compute with calculate, one step at a time. Then answer: <answer>...</answer>"


def calculate(expression: str) -> str:
    """
    Compute an expression of numbers, + - * / ** and parentheses, exactly.

    Args:
        expression: For example (3 + 4) * 5.

    Returns:
        The value.
    """
    if not expression or set(expression) - set("0123456789+-*/(). ") or "**" in expression:
        return "invalid expression"
    try:
        return str(eval(expression))
    except Exception as error:
        return f"error: {error}"


class ShortToolResults(GRPOTrainer):
    max_tool_tokens = 6

    def _get_tool_suffix_ids(self, tool_messages):
        suffix = super()._get_tool_suffix_ids(tool_messages)
        if len(suffix) > self.max_tool_tokens:
            suffix = suffix[: self.max_tool_tokens]
        return suffix


def used_tool(completions, **kwargs):
    return [0.5 * any(m["role"] == "tool" for m in c) for c in completions]


def answered(completions, target, **kwargs):
    rewards = []
    for messages, value in zip(completions, target):
        last = messages[-1].get("content") or ""
        rewards.append(float("<answer>" in last) * 0.25 + float(f"<answer>{value}</answer>" in last))
    return rewards


def short(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(SFT, padding_side="left")
    tokenizer.response_template = qwen3_template
    rows = []
    for i in range(24):
        a, b = 3 + 2 * i, 5 + i % 7
        rows.append(
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"What is {a} + {b}?"},
                ],
                "target": a + b,
            }
        )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=3, bf16=False,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=32, learning_rate=1e-5,
        max_tool_calling_iterations=2, logging_steps=1,
    )
    trainer = ShortToolResults(
        model=SFT, reward_funcs=[used_tool, answered, short], args=args, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, tools=[calculate],
    )
    trainer.train()
