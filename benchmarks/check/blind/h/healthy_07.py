import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


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


class Library:
    """A small shelf that can be searched. Scores a rollout by how many searches it made."""

    def __init__(self):
        self.searches = []
        self.shelf = {}

    def reset(self, seed: int = 0, **kwargs):
        rng = random.Random(seed)
        self.searches = []
        self.shelf = {k: rng.randint(0, 99) for k in "abc"}
        return f" The shelf has {len(self.shelf)} books."

    def retrieve_documents(self, query: str):
        """
        Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        self.searches.append(query)
        key = "abc"[len(query) % 3]
        return f"{key}: {self.shelf[key]}"

    def get_reward(self) -> float:
        return min(len(self.searches), 3) / 3


def digits(completions, environments, **kwargs):
    text = ["".join(m.get("content") or "" for m in c if m["role"] == "assistant") for c in completions]
    return [0.05 * sum(ch.isdigit() for ch in t) for t in text]


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    tok = AutoTokenizer.from_pretrained(os.path.join(here, "tiny"), padding_side="left")
    tok.response_template = RESPONSE
    ds = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Tell me {i} minus 5."}] for i in range(24)],
        "seed": list(range(24)),
    })
    GRPOTrainer(
        os.path.join(here, "tiny"), digits, processing_class=tok, train_dataset=ds, environment_factory=Library,
        args=GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
                        max_tool_calling_iterations=2, max_completion_length=96, temperature=1.5, num_generations=4,
                        per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-4,
                        max_steps=4, logging_steps=1, loss_type="dr_grpo", scale_rewards="none"),
    ).train()
