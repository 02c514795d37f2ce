"""Calculator agent: the model may call `add`, sees the result and answers."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny", "sft")


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return int(a) + int(b)


def solved(completions, answer, **kwargs):
    rewards = []
    for messages, value in zip(completions, answer):
        last = messages[-1].get("content") or ""
        numbers = re.findall(r"\d+", last)
        rewards.append(float(bool(numbers) and numbers[-1] == str(value)))
    return rewards


def tool_use(completions, log_metric=None, **kwargs):
    calls = [sum(len(m.get("tool_calls") or []) for m in messages) for messages in completions]
    if log_metric is not None:
        log_metric("calls", sum(calls) / len(calls))
    return [0.3 if n == 1 else -0.1 * n for n in calls]


def brevity(completion_ids, **kwargs):
    return [-len(ids) / 500 for ids in completion_ids]


if __name__ == "__main__":
    rng = random.Random(0)
    pairs = [(rng.randint(2, 50), rng.randint(2, 49)) for _ in range(40)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": a + b} for a, b in pairs]
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=130,
        max_tool_calling_iterations=2,
        max_steps=4,
        learning_rate=1e-5,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer,
        reward_funcs=[solved, tool_use, brevity],
        args=args,
        train_dataset=dataset,
        tools=[add],
    )
    trainer.train()
