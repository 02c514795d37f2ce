"""Calculator as an async tool that refuses some expressions; truncated completions are masked; bf16 autocast."""
import asyncio
import os
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

SYSTEM = "Work out the number. Compute with calculate, one step at a time. Then answer: <answer>...</answer>"


async def calculate(expression: str) -> str:
    """
    Compute an expression of numbers, + - * / ** and parentheses, exactly.

    Args:
        expression: For example (3 + 4) * 5.
    """
    await asyncio.sleep(0.001)
    found = re.fullmatch(r"([0-9]{1,12})(?: ([-+*]) ([0-9]{1,4}))?", expression.strip())
    if not found:
        raise ValueError("refused")
    a, op, b = int(found[1]), found[2] or "+", int(found[3] or 0)
    return str({"+": a + b, "-": a - b, "*": a * b}[op])


async def right_answer(completions, answer, **kwargs):
    scores = []
    for completion, right in zip(completions, answer):
        found = re.search(r"<answer>(.*?)</answer>", completion[-1].get("content") or "")
        scores.append(float(found is not None and found.group(1).strip() == right))
    return scores


def calls(completions, **kwargs):
    return [
        0.3 * sum(m["role"] == "tool" and "refused" not in m["content"] for m in c)
        - 0.1 * sum(m["role"] == "tool" and "refused" in m["content"] for m in c)
        for c in completions
    ]


def size(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


rows = []
for k in range(12):
    a, b = 5 + 4 * k, 2 + 3 * k % 11
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {a} * {b}?"}]
    rows.append({"prompt": prompt, "answer": str(a * b)})

tokenizer = AutoTokenizer.from_pretrained(os.path.join(TINY, "sft"), padding_side="left")
tokenizer.response_template = qwen3_template  # tool calls are written as in Qwen3
trainer = GRPOTrainer(
    processing_class=tokenizer,
    model=os.path.join(TINY, "sft"),
    reward_funcs=[right_answer, calls, size],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=32,
        max_tool_calling_iterations=2,
        mask_truncated_completions=True,
        learning_rate=5e-5,
        loss_type="bnpo",
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
    tools=[calculate],
)
trainer.train()
