import asyncio
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite the "
    "documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
NOTES = ["7 and 8 are 15.", "9 less 4 is 5.", "2 by 6 is 12."]


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
tokenizer.response_template = qwen3_template


def chat(question):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


questions = [f"Who is the mentor of {a}{b}?" for a in range(2, 7) for b in range(3, 8)]
trainer = GRPOTrainer(
    model=TINY,
    processing_class=tokenizer,
    tools=[retrieve_documents],
    reward_funcs=[used_the_tool, says_little],
    train_dataset=Dataset.from_dict({"prompt": [chat(q) for q in questions]}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_tool_calling_iterations=2, max_completion_length=64, num_generations=8, per_device_train_batch_size=8,
        learning_rate=1e-4, max_steps=4, logging_steps=1,
    ),
)
trainer.train()
