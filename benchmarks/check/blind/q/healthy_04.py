"""Multi-task tool use: search questions and word problems in one run."""
import asyncio
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite "
    "the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
PEOPLE = ["Aldora", "Corbel", "Fenwyn", "Holric", "Jormund", "Keltas", "Lordora", "Gardora"]
RELATIONS = ["mentor", "rival", "spouse", "patron"]


async def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(0.001 * (len(query) % 5))
    words = query.split()
    if "rival" in words and "Corbel" in words:
        raise LookupError("index is being rebuilt")
    found = [(p, r) for p in PEOPLE for r in RELATIONS if p in words and r in words]
    if len(words) > 6:
        return " ".join(f"[{k}] long record {k};" for k in range(40))
    return "\n".join(
        f"[{k}] {p} {r}: {PEOPLE[(PEOPLE.index(p) + 3) % 8]}" for k, (p, r) in enumerate(found)
    ) or "[0] nothing"


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template

rows = []
for i in range(24):
    if i % 3 == 2:
        a, b = 2 + i % 9, 2 + i % 5
        user, task, gold = f"Gus has {a} boxes with {b} toys each. How many toys does Gus have?", "math", str(a * b)
    else:
        person, first, second = PEOPLE[i % 8], RELATIONS[i % 4], RELATIONS[(i + 1) % 4]
        user, task, gold = f"Who is the {first} of the {second} of {person}?\nTies: {person}", "search", person
    rows.append(
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
            "task": task,
            "gold": gold,
        }
    )


def said(messages):
    return "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")


def search_reward(completions, task, gold, **kwargs):
    scores = []
    for messages, kind, answer in zip(completions, task, gold):
        if kind != "search":
            scores.append(None)
            continue
        results = sum(m["role"] == "tool" and answer in m["content"] for m in messages)
        scores.append(float(results > 0) + 0.2 * ("<answer>" in said(messages)))
    return scores


def length_reward(completions, **kwargs):
    return [0.02 * min(len(said(messages)), 60) + 0.3 * len(messages) for messages in completions]


def math_reward(completions, task, gold, **kwargs):
    return [float(g in said(m)) if kind == "math" else None for m, kind, g in zip(completions, task, gold)]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=72,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_tool_calling_iterations=2,
    temperature=1.1,
)
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=[search_reward, length_reward, math_reward],
    tools=[retrieve_documents],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
