"""GRPO with a calculator: tool calls, an asynchronous reward, groups over both ranks, two passes."""
import asyncio
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny", "sft")


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression, such as "3 + 4".

    Returns:
        The value.
    """
    if not set(expression) <= set("0123456789+-*/(). "):
        raise ValueError("not an expression")
    return str(eval(expression))


async def right_value(completions, answer, **kwargs):
    async def one(completion, truth):
        await asyncio.sleep(0)
        text = " ".join(m["content"] for m in completion if m["role"] == "assistant" and m.get("content"))
        return 1.0 if truth in text else 0.0

    return list(await asyncio.gather(*[one(c, truth) for c, truth in zip(completions, answer)]))


def used_tool(completions, **kwargs):
    return [0.3 * min(1, sum(m["role"] == "tool" for m in completion)) for completion in completions]


def concise(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = qwen3_template
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b)}
        for a in range(1, 10)
        for b in range(1, 6)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        max_tool_calling_iterations=1,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer,
        reward_funcs=[right_value, used_tool, concise],
        args=args,
        train_dataset=Dataset.from_list(rows),
        tools=[calculate],
    ).train()


if __name__ == "__main__":
    main()
