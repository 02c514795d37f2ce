"""Calculator with tool calls; the tokens of a tool message are limited so that long outputs do not eat the budget."""
import ast
import operator
import os
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

SYSTEM = "Work out the number. Compute with calculate, one step at a time. Then answer: <answer>...</answer>"

OPS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def _value(node):
    if isinstance(node, ast.BinOp):
        return OPS[type(node.op)](_value(node.left), _value(node.right))
    return node.value


def calculate(expression: str) -> str:
    """
    Compute an expression of numbers, + - * / ** and parentheses, exactly.

    Args:
        expression: For example (3 + 4) * 5.
    """
    return str(_value(ast.parse(expression, mode="eval").body))


class CappedToolTrainer(GRPOTrainer):
    """Keeps at most `max_tool_tokens` tokens of what a tool returns."""

    max_tool_tokens = 8

    def _get_tool_suffix_ids(self, tool_messages):
        suffix_ids = super()._get_tool_suffix_ids(tool_messages)
        return suffix_ids[: self.max_tool_tokens]


def right_answer(completions, answer, **kwargs):
    scores = []
    for completion, right in zip(completions, answer):
        text = completion[-1].get("content") or ""
        found = re.search(r"<answer>(.*?)</answer>", text)
        scores.append(float(found is not None and found.group(1).strip() == right))
    return scores


def used_tool(completions, **kwargs):
    return [0.2 * sum(m["role"] == "tool" and "error" not in m["content"] for m in c) for c in completions]


def length(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


rows = []
for k in range(12):
    a, b = 11 + 3 * k, 4 + 5 * k % 20
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {a} + {b}?"}]
    rows.append({"prompt": prompt, "answer": str(a + b)})

tokenizer = AutoTokenizer.from_pretrained(os.path.join(TINY, "sft"), padding_side="left")
tokenizer.response_template = qwen3_template  # tool calls are written as in Qwen3
trainer = CappedToolTrainer(
    processing_class=tokenizer,
    model=os.path.join(TINY, "sft"),
    reward_funcs=[right_answer, used_tool, length],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        max_tool_calling_iterations=2,
        learning_rate=2e-5,
    ),
    train_dataset=Dataset.from_list(rows),
    tools=[calculate],
)
trainer.train()
