"""A calculator agent whose tool is a coroutine.

`calculate` will be a web service, so it is `async` and the calls of a turn run together. The chat template of this
model is our own, so the response template is set by hand. Tool calls may follow each other up to two times.
"""

import ast
import asyncio
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


async def calculate(expression: str) -> str:
    """Compute an expression of numbers, + - * / ** and parentheses, exactly.

    Args:
        expression: For example (3 + 4) * 5.
    """
    await asyncio.sleep(0.001)
    return str(evaluate(ast.parse(expression, mode="eval").body))[:12]


def tool_use(completions, **kwargs):
    """One or two successful calls, and little text besides."""
    rewards = []
    for messages in completions:
        results = [m["content"] for m in messages if m["role"] == "tool"]
        good = sum("error" not in r for r in results)
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        rewards.append(0.3 * min(good, 2) - 0.05 * len(results) - len(text) / 60 + 0.01 * len("".join(results)))
    return rewards


def main():
    questions = ["What is 3 + 4?", "What is 12 * 7?", "Start with 9, then add 4. What is the result?", "What is 8 / 2?"]
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
            max_completion_length=64,
            max_tool_calling_iterations=2,
            max_steps=3,
            learning_rate=1e-4,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
        )
        trainer = GRPOTrainer(
            model=MODEL,
            reward_funcs=tool_use,
            args=args,
            train_dataset=dataset,
            processing_class=tokenizer,
            tools=[calculate],
        )
        trainer.train()


if __name__ == "__main__":
    main()
