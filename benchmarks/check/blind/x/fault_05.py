"""Search agent: the model calls `retrieve_documents`, reads the result and answers."""

import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite the "
    "documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
FACTS = {
    "Aldora": "rival Elric, mentor Brivek", "Brivek": "spouse Cornia, tutor Dantas", "Cornia": "patron Fenwyn",
    "Dantas": "cousin Garsor, employer Holbel", "Elric": "neighbor Isgan", "Fenwyn": "mentor Jorric",
}
MAX_RESULT_TOKENS = 12


def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    hits = [name for name in FACTS if name in query] or ["Elric"]
    return "".join(f"[{i}] {name}: {FACTS[name]}\n" for i, name in enumerate(hits))


class SearchTrainer(GRPOTrainer):
    def _get_tool_suffix_ids(self, tool_messages):
        # A single page can fill the whole completion budget; keep the head of a result, which ranks best.
        suffix = super()._get_tool_suffix_ids(tool_messages)
        return suffix[:MAX_RESULT_TOKENS]


def answered(completions, **kwargs):
    return [sum("<answer>" in (m.get("content") or "") for m in c if m["role"] == "assistant") for c in completions]


def words(completions, **kwargs):
    return [len(set("".join(m.get("content") or "" for m in c if m["role"] == "assistant"))) / 20 for c in completions]


def tokens_used(completion_ids, **kwargs):
    return [-len(ids) / 32 for ids in completion_ids]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = RESPONSE_TEMPLATE
    questions = [f"Who is the {r} of{' the ' + s + ' of' if s else ''} {n}?"
                 for n, r, s in [("Aldora", "rival", ""), ("Brivek", "spouse", "mentor"), ("Cornia", "patron", ""),
                                 ("Dantas", "cousin", "tutor"), ("Elric", "neighbor", ""), ("Fenwyn", "mentor", "rival")]]
    data = Dataset.from_list(
        [{"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}]} for q in questions]
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=3,
        learning_rate=2e-4, per_device_train_batch_size=8, num_generations=4, max_completion_length=32,
        temperature=1.7, max_tool_calling_iterations=1, gradient_checkpointing=False, logging_steps=1,
    )
    SearchTrainer(
        model=MODEL, reward_funcs=[answered, words, tokens_used], args=args, train_dataset=data,
        processing_class=tokenizer, tools=[retrieve_documents],
    ).train()


if __name__ == "__main__":
    main()
