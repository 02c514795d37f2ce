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
PEOPLE = ["Aldora", "Almund", "Alvek", "Bridora", "Brimund", "Cordora", "Cormund", "Dandora"]
TIES = ["mentor", "rival", "spouse", "patron", "neighbor", "employer", "cousin", "tutor"]


class LibraryEnv:
    def __init__(self):
        self.facts = {(p, t): PEOPLE[(i + j + 1) % 8] for i, p in enumerate(PEOPLE) for j, t in enumerate(TIES)}
        self.queries = []
        self.person = None
        self.tie = None

    def reset(self, person, tie, **kwargs):
        self.queries = []
        self.person, self.tie = person, tie
        return None

    def retrieve_documents(self, query: str):
        """Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        self.queries.append(query)
        for (person, tie), other in self.facts.items():
            if person in query and tie in query:
                return f"[1] {other}"
        return "no document found"

    def get_reward(self):
        hits = sum(self.person in q for q in self.queries) + 0.5 * sum(self.tie in q for q in self.queries)
        return min(hits, 2.0) + 0.01 * len(self.person) - 0.1 * len(self.queries)


library = LibraryEnv()

dataset = Dataset.from_list([
    {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the {t} of {p}?"}],
        "person": p,
        "tie": t,
    }
    for p, t in zip(PEOPLE * 2, TIES + TIES[::-1])
])

def cite_reward(completions, **kwargs):
    return [0.2 if "<cite>" in str(c[-1].get("content", "")) else 0.0 for c in completions]


tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template

trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=cite_reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=5, learning_rate=1e-5, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=48, max_tool_calling_iterations=2,
    ),
    train_dataset=dataset,
    environment_factory=lambda: library,
)
trainer.train()
