"""Agentic run: one retrieval tool, TRL's own tool loop."""
import tempfile
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = Path(__file__).resolve().parent / "tiny"
PEOPLE = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
RELATIONS = ["mentor", "rival", "spouse", "patron", "cousin", "tutor"]
FACTS = {(p, r): PEOPLE[(i * 3 + j + 1) % len(PEOPLE)] for i, p in enumerate(PEOPLE) for j, r in enumerate(RELATIONS)}


def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    words = query.split()
    for (p, r), o in FACTS.items():
        if p in words and r in words:
            return f"[1] The {r} of {p} is {o}."
    return "nothing"


SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite the "
    "documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
rows = [
    {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the {r2} of the {r1} of {p}?"}],
        "gold": FACTS[FACTS[p, r1], r2],
    }
    for p in PEOPLE for r1 in RELATIONS[:3] for r2 in RELATIONS[3:]
]


def answered(completions, gold, **kwargs):
    out = []
    for messages, g in zip(completions, gold):
        last = messages[-1].get("content") or ""
        calls = sum(len(m.get("tool_calls") or []) for m in messages)
        out.append(1.0 * (g in last) + 0.2 * min(calls, 2) + 0.1 * ("<answer>" in last))
    return out


tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.response_template = qwen3_template

trainer = GRPOTrainer(
    model=str(MODEL),
    processing_class=tokenizer,
    reward_funcs=answered,
    tools=[retrieve_documents],
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=2e-5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=96, max_tool_calling_iterations=2,
        temperature=1.1, save_strategy="no", logging_steps=1,
    ),
)
trainer.train()
