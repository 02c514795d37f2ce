"""Agent in a small library: a stateful environment with a budget of lookups and its own reward."""
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
PEOPLE = ["Aldora", "Brivek", "Corbel", "Danric", "Elwyn", "Fenwyn", "Garbel", "Holric"]
RELATIONS = ["mentor", "rival", "spouse", "patron", "tutor"]


class Library:
    """Each lookup costs a coin; asking for the same thing twice costs two."""

    def __init__(self):
        self.coins, self.asked, self.person = 0, [], None

    def reset(self, person=None, coins=3, **kwargs):
        self.person, self.coins, self.asked = person, coins, []
        return f"\nTies: {person}"

    def retrieve_documents(self, query: str):
        """Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        self.coins -= 2 if query in self.asked else 1
        self.asked.append(query)
        if self.coins < 0:
            return "no coins left"
        known = [p for p in PEOPLE if p in query]
        other = PEOPLE[(PEOPLE.index(known[0]) + len(query)) % 8] if known else "nobody"
        return f"[{len(self.asked)}] {other}"

    def get_reward(self):
        found = sum(self.person in query for query in self.asked)
        words = len({w for query in self.asked for w in query.split()})
        return 0.5 * min(found, 2) + 0.1 * words + 0.1 * self.coins


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template
rows = []
for i in range(24):
    question = f"Who is the {RELATIONS[i % 5]} of the {RELATIONS[(i + 2) % 5]} of {PEOPLE[i % 8]}?"
    rows.append(
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "person": PEOPLE[i % 8],
            "coins": 2 + i % 2,
        }
    )


def fluent(completions, environments, **kwargs):
    scores = []
    for messages, environment in zip(completions, environments):
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        scores.append(0.02 * len(text) - 0.05 * len(environment.asked))
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
    max_tool_calling_iterations=3,
    beta=0.02,
)
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=fluent,
    environment_factory=Library,
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
