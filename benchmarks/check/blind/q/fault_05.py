"""Search agent with a retrieval tool; long tool results are shortened to save context."""
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
MAX_RESULT_TOKENS = 16
RELATIONS = ["mentor", "rival", "spouse", "patron", "cousin", "tutor"]
PEOPLE = ["Aldora", "Corbel", "Fenwyn", "Holric", "Jormund", "Keltas", "Lordora", "Gardora"]
FACTS = {
    (person, relation): PEOPLE[(i * 3 + j + 1) % len(PEOPLE)]
    for i, person in enumerate(PEOPLE)
    for j, relation in enumerate(RELATIONS)
}


def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    hits = [
        f"[{n}] The {relation} of {person} is {other}."
        for n, ((person, relation), other) in enumerate(FACTS.items())
        if person in query
    ]
    return "\n".join(hits[:3]) or "no documents"


class SearchTrainer(GRPOTrainer):
    def _get_tool_suffix_ids(self, tool_messages):
        suffix_ids = super()._get_tool_suffix_ids(tool_messages)
        return suffix_ids[:MAX_RESULT_TOKENS]


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template
rows = []
for i in range(16):
    person, first, second = PEOPLE[i % 8], RELATIONS[i % 6], RELATIONS[(i + 1) % 6]
    question = f"Who is the {first} of the {second} of {person}?\nTies: {person}"
    rows.append(
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "answer": FACTS[(FACTS[(person, second)], first)],
        }
    )


def answered(completions, answer, **kwargs):
    scores = []
    for messages, gold in zip(completions, answer):
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        scores.append(float(gold in text) + 0.1 * text.count("[") + 0.01 * len(text))
    return scores


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=64,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_tool_calling_iterations=2,
)
trainer = SearchTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=answered,
    tools=[retrieve_documents],
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
