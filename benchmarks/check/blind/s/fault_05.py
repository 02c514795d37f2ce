"""A calculator agent with a cap on the length of tool output.

Some results are very long (exact integers), and they used to eat the whole completion budget. The subclass limits
what a tool message may add to the sequence.
"""

import ast
import operator
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")
SYSTEM = "Work out the number. Compute with calculate, one step at a time. Then answer: <answer>...</answer>"
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def evaluate(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](evaluate(node.operand))
    raise ValueError("not a number")


def calculate(expression: str) -> str:
    """Compute an expression of numbers, + - * / ** and parentheses, exactly.

    Args:
        expression: For example (3 + 4) * 5.
    """
    return f"{expression} = {evaluate(ast.parse(expression, mode='eval').body)}"


class ShortToolOutputTrainer(GRPOTrainer):
    max_tool_tokens = 16

    def _get_tool_suffix_ids(self, tool_messages):
        suffix = super()._get_tool_suffix_ids(tool_messages)
        return suffix[: self.max_tool_tokens]


def used_tool(completions, **kwargs):
    rewards = []
    for messages in completions:
        calls = sum(m["role"] == "tool" for m in messages)
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        rewards.append(0.5 * min(calls, 1) - len(text) / 50)
    return rewards


def main():
    questions = ["What is 3 + 4?", "What is 12 * 7?", "What is 90 - 45?", "What is 8 / 2?", "What is 5 * 5 + 1?"]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}] for q in questions]}
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=48,
            max_tool_calling_iterations=1,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = ShortToolOutputTrainer(
            model=MODEL,
            reward_funcs=used_tool,
            args=args,
            train_dataset=dataset,
            processing_class=tokenizer,
            tools=[calculate],
        )
        trainer.train()


if __name__ == "__main__":
    main()
