import asyncio
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NOTES = ["15", "9 - 4", "is 12"]

# this model often forgets to close a call: a call also ends where the next one starts, or with the turn
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "look up',
            "close_pattern": r'"\}\}\s*</tool_call>\s*|(?=<tool_call>)|(?=<\|im_end\|>)',
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "retrieve_documents", "arguments": {"query": "{content}"}},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


async def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(0.001)
    return NOTES[len(query) % len(NOTES)]


def used_the_tool(completions, **kwargs):
    return [0.5 * sum(m["role"] == "tool" for m in c) for c in completions]


def says_little(completions, **kwargs):
    return [-0.01 * sum(len(m.get("content") or "") for m in c if m["role"] == "assistant") for c in completions]


tokenizer = AutoTokenizer.from_pretrained(TINY, padding_side="left")
tokenizer.response_template = RESPONSE

questions = [f"Tell me {a} minus {b}." for a in range(12, 17) for b in range(3, 8)]
trainer = GRPOTrainer(
    model=TINY,
    processing_class=tokenizer,
    tools=[retrieve_documents],
    reward_funcs=[used_the_tool, says_little],
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_tool_calling_iterations=2, max_completion_length=96, temperature=1.5, num_generations=8, per_device_train_batch_size=8,
        learning_rate=1e-4, max_steps=4, logging_steps=1,
    ),
)
trainer.train()
