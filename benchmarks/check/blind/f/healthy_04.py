"""A retrieval tool, with the number of calls rewarded."""
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
FACTS = {
    "Aldora": {"mentor": "Brigan", "rival": "Corwyn"},
    "Dantas": {"mentor": "Elric", "rival": "Fenvek"},
    "Garbel": {"mentor": "Holsor", "rival": "Isnia"},
    "Jorric": {"mentor": "Keldora", "rival": "Lormund"},
}


def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    for person, ties in FACTS.items():
        for tie, other in ties.items():
            if person in query and tie in query:
                return f"[1] {other}"
    return "[0] nothing"


def looked_up(completions, person, **kwargs):
    scores = []
    for messages, who in zip(completions, person):
        calls = [call for m in messages for call in (m.get("tool_calls") or [])]
        scores.append(sum(who in str(call["function"]["arguments"]) for call in calls) * 0.5)
    return scores


def found(completions, other, **kwargs):
    return [float(any(o in str(m.get("content")) for m in messages[1:])) for messages, o in zip(completions, other)]


def length(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


dataset = Dataset.from_list([
    {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the {tie} of {p}?"}],
        "person": p,
        "other": other,
    }
    for p, ties in FACTS.items() for tie, other in ties.items()
])
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template

trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=[looked_up, found, length],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=5,
        per_device_train_batch_size=8, num_generations=8, max_completion_length=48, learning_rate=1e-5,
        max_tool_calling_iterations=2, temperature=1.2, beta=0.01,
    ),
    train_dataset=dataset,
    tools=[retrieve_documents],
)
trainer.train()
