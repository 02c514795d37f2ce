"""Search agent: GRPO with one retrieval tool over a small knowledge base."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")
NAMES = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
RELATIONS = ["mentor", "rival", "spouse", "patron", "tutor", "cousin"]
rng = random.Random(3)
FACTS = {(name, relation): rng.choice(NAMES) for name in NAMES for relation in RELATIONS}


def retrieve_documents(query: str):
    """
    Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    words = query.split()
    hits = [who for (name, relation), who in FACTS.items() if name in words and relation in words]
    return " ".join(f"[{i}] {who}" for i, who in enumerate(hits)) or "[0]"


class SearchTrainer(GRPOTrainer):
    def _get_tool_suffix_ids(self, tool_messages):
        """The tool turn as ids. TRL renders a dummy conversation twice for every call, which dominated our rollout
        time; the turn is short enough to write it out."""
        body = "".join(f"\n<tool_response>\n{m['content']}\n</tool_response>" for m in tool_messages)
        text = f"\n<|im_start|>user{body}<|im_end|>\n"
        return self.processing_class(text, add_special_tokens=False)["input_ids"]


def tool_discipline(completions, **kwargs):
    """One look-up is what a single hop needs."""
    scores = []
    for messages in completions:
        calls = sum(len(m.get("tool_calls") or []) for m in messages if m["role"] == "assistant")
        scores.append(1.0 - 0.4 * abs(calls - 1))
    return scores


def answer_shape(completions, completion_ids, **kwargs):
    return [
        (0.5 if "<answer>" in (m[-1].get("content") or "") else 0.0) - 0.01 * len(ids)
        for m, ids in zip(completions, completion_ids)
    ]


questions = [f"Who is the {r} of the {s} of {n}?" for n in NAMES for r in RELATIONS[:3] for s in RELATIONS[3:]]
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template  # same tool-call markup as Qwen3

trainer = SearchTrainer(
    model=MODEL,
    reward_funcs=[tool_discipline, answer_shape],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=8,
        gradient_accumulation_steps=2,
        max_completion_length=72,
        max_tool_calling_iterations=2,
        temperature=1.5,
        learning_rate=3e-5,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in questions]}),
    processing_class=tokenizer,
    tools=[retrieve_documents],
)
trainer.train()
