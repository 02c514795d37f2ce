"""GRPO with an asynchronous retrieval tool that fails for some queries and returns less the more often it is called."""
import asyncio
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
FACTS = {
    "Brimund": ("mentor", "[3] Brimund mentor Aldora", "Aldora"),
    "Corvek": ("rival", "[7] Corvek rival Elwyn", "Elwyn"),
    "Danric": ("spouse", "[2] Danric spouse Fentas", "Fentas"),
    "Gardora": ("patron", "[11] Gardora patron Holsor", "Holsor"),
    "Isbel": ("tutor", "[5] Isbel tutor Jorgan", "Jorgan"),
    "Keltas": ("cousin", "[9] Keltas cousin Lordora", "Lordora"),
}
server_rng = random.Random(7)


async def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(server_rng.random() / 100)
    for person, (_, document, _) in FACTS.items():
        if person in query:
            if server_rng.random() < 0.3:
                raise TimeoutError("busy")
            return document if server_rng.random() < 0.7 else document + "\n[0]"
    raise KeyError("none")


async def judged(completions, answer, **kwargs):
    """An asynchronous judge."""

    async def judge(messages, target):
        await asyncio.sleep(0.001)
        text = " ".join(m["content"] for m in messages if m["role"] == "assistant")
        return float(target in text) + 0.5 * ("<answer>" in text) + 0.02 * len(set(text))

    return await asyncio.gather(*[judge(m, t) for m, t in zip(completions, answer)])


def tool_use(completions, **kwargs):
    return [0.25 * sum(m["role"] == "tool" and "error" not in m["content"] for m in messages) for messages in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = qwen3_template
    rows = [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Who is the {relation} of {person}?"},
            ],
            "answer": target,
        }
        for person, (relation, _, target) in FACTS.items()
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=32,
        max_tool_calling_iterations=2, mask_truncated_completions=True, learning_rate=1e-4, max_steps=4,
        logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, report_to=[],
    )
    GRPOTrainer(
        MODEL, [judged, tool_use], args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        tools=[retrieve_documents],
    ).train()


if __name__ == "__main__":
    main()
