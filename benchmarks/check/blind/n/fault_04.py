"""GRPO with a retrieval tool. Tool turns are rendered often, so their rendering is cached."""
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
    ("Brimund", "mentor"): ("[3]", "Aldora"),
    ("Corvek", "rival"): ("[7]", "Elwyn"),
    ("Danric", "spouse"): ("[2]", "Fentas"),
    ("Gardora", "patron"): ("[11]", "Holsor"),
    ("Isbel", "tutor"): ("[5]", "Jorgan"),
    ("Keltas", "cousin"): ("[9]", "Lordora"),
}


def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    for (person, relation), (doc, answer) in FACTS.items():
        if person in query:
            return f"{doc} {person} {relation} {answer}"
    return "[0]"


class CachedToolTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._suffix_cache = {}

    def _get_tool_suffix_ids(self, tool_messages):
        key = tuple((message["role"], message["name"]) for message in tool_messages)
        if key not in self._suffix_cache:
            self._suffix_cache[key] = super()._get_tool_suffix_ids(tool_messages)
        return list(self._suffix_cache[key])


def answered(completions, answer, **kwargs):
    rewards = []
    for messages, target in zip(completions, answer):
        text = " ".join(m["content"] for m in messages if m["role"] == "assistant")
        rewards.append(float(target in text) + 0.5 * ("<answer>" in text) + 0.02 * len(set(text)))
    return rewards


def called_tool(completions, **kwargs):
    return [0.5 * any(m["role"] == "tool" for m in messages) for messages in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = qwen3_template
    rows = [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Who is the {relation} of {person}?"},
            ],
            "answer": answer,
        }
        for (person, relation), (_, answer) in FACTS.items()
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        max_tool_calling_iterations=2,
        learning_rate=1e-4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = CachedToolTrainer(
        model=MODEL,
        reward_funcs=[answered, called_tool],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[retrieve_documents],
    )
    trainer.train()


if __name__ == "__main__":
    main()
