"""Retrieval agent: the model looks facts up with a tool, then answers."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = ("Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and "
          "cite the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>")
PEOPLE = ["Holgan", "Kelmund", "Briwyn", "Corvek", "Fennia", "Garric", "Isdora", "Jorsor"]
TIES = ["mentor", "rival", "spouse", "tutor", "patron", "cousin"]


def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    key = sum(ord(ch) for ch in query)
    return f"[{key % 10}] {PEOPLE[key % 8]}"


class AgentTrainer(GRPOTrainer):
    """Renders tool results as the template does in the middle of a conversation, cached per result."""

    def __init__(self, *args, **kwargs):
        self._suffixes = {}
        super().__init__(*args, **kwargs)

    def _get_tool_suffix_ids(self, tool_messages):
        key = tuple((m["name"], str(m["content"])) for m in tool_messages)
        if key not in self._suffixes:
            tok = self.processing_class
            call = {"type": "function", "function": {"name": tool_messages[0]["name"], "arguments": {}}}
            head = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
            before = tok.apply_chat_template(head, tokenize=True, return_dict=False)
            after = tok.apply_chat_template(head + tool_messages, tokenize=True, return_dict=False)
            last = max(i for i, t in enumerate(before) if t == tok.eos_token_id)
            self._suffixes[key] = after[last + 1:]
        return list(self._suffixes[key])


def rows():
    for i in range(40):
        who, tie, other = PEOPLE[i % 8], TIES[i % 6], TIES[(i + 2) % 6]
        question = f"Who is the {tie} of the {other} of {who}?"
        yield {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]}


def length(completion_ids, **kwargs):
    return [len(ids) / 48 for ids in completion_ids]


def letters(completions, **kwargs):
    texts = ["".join(str(m.get("content", "")) for m in c) for c in completions]
    return [sum(ch in "aeiou" for ch in t) / (1 + len(t)) for t in texts]


def looked_up(completions, **kwargs):
    return [0.5 * sum(m["role"] == "tool" for m in c) for c in completions]


tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.response_template = qwen3_template
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=1,
    num_generations=4, max_completion_length=48, max_tool_calling_iterations=1, learning_rate=1e-4,
    temperature=1.7, loss_type="grpo", save_strategy="no", report_to=[], use_cpu=True, bf16=False, logging_steps=1,
)
trainer = AgentTrainer(MODEL, [length, letters, looked_up], config, train_dataset=Dataset.from_list(list(rows())),
                       processing_class=tokenizer, tools=[retrieve_documents])
trainer.train()
