"""Agentic GRPO: the policy may look up facts with a tool; an asynchronous search backend answers."""
import asyncio
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite "
    "the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
NAMES = ["Aldora", "Brivek", "Corwyn", "Danric", "Eltas", "Fennia", "Garbel", "Holsor"]
ROLES = ["mentor", "rival", "tutor", "cousin"]


async def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(0.002)
    index = sum(map(ord, query))
    return f"[{index % 20}] {NAMES[index % len(NAMES)]}"


def make_dataset(n=40):
    rng = random.Random(6)
    return Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Who is the {rng.choice(ROLES)} of the {rng.choice(ROLES)} of {rng.choice(NAMES)}?\nOne name, please."},
                ]
            }
            for _ in range(n)
        ]
    )


def text_of(completion):
    return " ".join(m.get("content") or "" for m in completion if m["role"] == "assistant")


def called(completions, **kwargs):
    return [0.5 * any(m.get("tool_calls") for m in c) for c in completions]


def variety(completions, **kwargs):
    return [len(set(text_of(c))) / 20 for c in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=16,
        num_generations=8,
        temperature=1.3,
        max_completion_length=32,
        max_tool_calling_iterations=2,
    )
    GRPOTrainer(
        model=TINY,
        reward_funcs=[called, variety],
        args=args,
        train_dataset=make_dataset(),
        processing_class=tokenizer,
        tools=[retrieve_documents],
    ).train()


if __name__ == "__main__":
    main()
