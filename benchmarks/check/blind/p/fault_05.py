"""GRPO with a retrieval tool. Tool responses are wrapped in chat-template tokens; these are cached."""
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
PEOPLE = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]


def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    score = sum(query.encode()) % 17
    return f"[{score}] {PEOPLE[score % len(PEOPLE)]} ({len(query)})"


class ToolTrainer(GRPOTrainer):
    """Rendering the template twice per tool call dominated the rollout time, so keep the rendered suffixes."""

    def __init__(self, *args, **kwargs):
        self._suffix_cache = {}
        super().__init__(*args, **kwargs)

    def _get_tool_suffix_ids(self, tool_messages):
        key = tuple((message["role"], message["name"]) for message in tool_messages)
        if key not in self._suffix_cache:
            self._suffix_cache[key] = super()._get_tool_suffix_ids(tool_messages)
        return list(self._suffix_cache[key])


def reward(completions, **kwargs):
    scores = []
    for messages in completions:
        text = "".join(str(m.get("content") or "") for m in messages if m["role"] == "assistant")
        scores.append(len(messages) + 0.02 * len(text))
    return scores


dataset = Dataset.from_dict(
    {
        "prompt": [
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Who is the mentor of the rival of {p}?"}]
            for p in PEOPLE
        ]
    }
)
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=96,
    max_tool_calling_iterations=2,
    temperature=1.1,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.response_template = qwen3_template
trainer = ToolTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=args,
    train_dataset=dataset,
    processing_class=tokenizer,
    tools=[retrieve_documents],
)
trainer.train()
