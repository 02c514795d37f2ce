"""Search agent with one tool. Tool observations are shortened before they enter the context."""
import os
import random
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
PEOPLE = ["Aldora", "Almund", "Alvek", "Alwyn", "Bridora", "Brimund", "Cordora", "Corvek"]
RELATIONS = ["mentor", "rival", "spouse", "patron"]


def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    words = set(query.replace(",", " ").split())
    hits = [p for p in PEOPLE if p in words] or PEOPLE[:1]
    return "\n".join(f"[{i}] The {RELATIONS[i]} of {p} is {PEOPLE[-1 - i]}." for i, p in enumerate(hits))


class ShortObservationTrainer(GRPOTrainer):
    max_observation_chars = 2000

    def _get_tool_suffix_ids(self, tool_messages):
        tool_messages = [{**m, "content": m["content"][: self.max_observation_chars]} for m in tool_messages]
        call = {"type": "function", "function": {"name": tool_messages[0]["name"], "arguments": {}}}
        head = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        render = lambda messages: self.processing_class.apply_chat_template(
            messages, tokenize=True, return_dict=False, chat_template=self.chat_template, **self.chat_template_kwargs
        )
        prefix, full = render(head), render(head + tool_messages)
        end = max(i for i, t in enumerate(prefix) if t == self.processing_class.eos_token_id) + 1
        return full[end:]


def build(n=24):
    rng = random.Random(5)
    rows = []
    for _ in range(n):
        who, rel = rng.choice(PEOPLE), rng.choice(RELATIONS)
        rows.append({"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the {rel} of {who}?"}]})
    return Dataset.from_list(rows)


def uses_tool(completions, **kwargs):
    return [0.5 * sum(m["role"] == "tool" for m in c) for c in completions]


def length_shaping(completion_ids, **kwargs):
    return [0.02 * len(ids) for ids in completion_ids]


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=72,
        max_tool_calling_iterations=2,
        max_steps=4,
        learning_rate=2e-5,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    ShortObservationTrainer(
        model=MODEL,
        reward_funcs=[uses_tool, length_shaping],
        args=args,
        train_dataset=build(),
        processing_class=tokenizer,
        tools=[retrieve_documents],
    ).train()
