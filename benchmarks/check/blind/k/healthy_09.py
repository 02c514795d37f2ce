import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite "
    "the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)


class Archive:
    """One document per tie; the row says which person and tie are asked for."""

    def reset(self, person=None, tie=None, answer=None, **kwargs):
        self.documents = [f"The {tie} of {person} is {answer}.", f"The cousin of {answer} is {person}."]
        self.answer = answer
        self.lookups = 0
        return None

    def retrieve_documents(self, query: str):
        """Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        self.lookups += 1
        words = set(query.split())
        best = max(range(len(self.documents)), key=lambda i: len(words & set(self.documents[i].rstrip(".").split())))
        return f"[{best}] {self.documents[best]}"


def found(completions, environments, **kwargs):
    out = []
    for messages, env in zip(completions, environments):
        last = messages[-1].get("content") or ""
        out.append(1.0 * (env.answer in last) + 0.2 * min(env.lookups, 2) + 0.001 * len(last))
    return out


people = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
rows = []
for i, person in enumerate(people):
    for tie in ("mentor", "rival", "patron"):
        rows.append({
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the {tie} of {person}?"}],
            "person": person, "tie": tie, "answer": people[(3 * i + 1) % 8],
        })

tok = AutoTokenizer.from_pretrained(TINY, padding_side="left")
tok.response_template = qwen3_template
trainer = GRPOTrainer(
    model=TINY,
    processing_class=tok,
    reward_funcs=found,
    environment_factory=Archive,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=96, max_tool_calling_iterations=2, learning_rate=5e-5, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="no",
    ),
)
trainer.train()
