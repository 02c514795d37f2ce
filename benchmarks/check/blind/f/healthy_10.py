"""Two environments, one of which gives its own reward, and a subclass that only counts."""
import os
import re
import tempfile
from collections import Counter

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SEARCH = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite "
    "the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)


class Library:
    def __init__(self):
        self.calls = []

    def reset(self, goal, **kwargs):
        self.calls = []
        self.goal = goal

    def retrieve_documents(self, query: str):
        """Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        self.calls.append(query)
        return f"[1] {self.goal}" if self.goal in query else "[0] nothing"

    def get_reward(self):
        return sum(self.goal in q for q in self.calls) - 0.25 * len(self.calls)


class Arithmetic:
    def reset(self, goal, **kwargs):
        self.goal = goal
        return None


class CountingTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        lengths = output["completion_mask"].sum(1)
        self.lengths = getattr(self, "lengths", Counter()) + Counter(lengths.tolist())
        self._metrics["train"]["positive_share"].append((output["advantages"] > 0).float().mean().item())
        return output


def style(completions, environment, **kwargs):
    out = []
    for c, env in zip(completions, environment):
        text = str(c[0].get("content") or "")
        out.append(0.3 * bool(re.search(r"####", text)) if env == "math" else 0.3 * ("<cite>" in text))
    return out


def size(completion_ids, **kwargs):
    return [-len(ids) / 100 for ids in completion_ids]


rows = []
for who, tie in zip(["Aldora", "Bribel", "Cordora", "Dantas", "Elric", "Fengan"], ["mentor", "rival", "spouse", "patron", "tutor", "cousin"]):
    rows.append({
        "environment": "library", "goal": who,
        "prompt": [{"role": "system", "content": SEARCH}, {"role": "user", "content": f"Who is the {tie} of {who}?"}],
    })
for a in range(2, 8):
    rows.append({
        "environment": "math", "goal": str(a * 7),
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Finn has {a} boxes with 7 cards each. How many cards does Finn have?"},
        ],
    })

tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template

trainer = CountingTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=[style, size],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=5,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=48, learning_rate=1e-5,
        max_tool_calling_iterations=2, optim="adamw_torch", lr_scheduler_type="inverse_sqrt", warmup_steps=1,
    ),
    train_dataset=Dataset.from_list(rows),
    environment_factory={"library": Library, "math": Arithmetic},
)
trainer.train()
print(sorted(trainer.lengths.items()))
