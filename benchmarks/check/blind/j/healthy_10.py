"""Question answering with an asynchronous retrieval tool; exploration kept up by an entropy bonus."""
import asyncio
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. "
    "Then answer, and cite the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
FIRST = ["Aldora", "Almund", "Bridora", "Brimund", "Corvek", "Danwyn", "Eldora", "Fenric"]
TIES = ["mentor", "rival", "spouse", "patron", "cousin", "tutor"]
_rng = random.Random(40)
ARCHIVE = [(i, name, tie, _rng.choice(FIRST)) for i, (name, tie) in enumerate((n, t) for n in FIRST for t in TIES)]


async def retrieve_documents(query: str):
    """Find the documents that best match a query.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(0)
    words = set(query.replace("look up", "").split())
    ranked = sorted(ARCHIVE, key=lambda d: (-len(words & {d[1], d[2]}), d[0]))
    number, name, tie, who = ranked[0]
    return f"[{number % 20}] {name} {tie}: {who}"


def last_text(completion):
    return (completion[-1].get("content") or "") if completion[-1]["role"] == "assistant" else ""


def answer_reward(completions, gold, **kwargs):
    rewards = []
    for completion, g in zip(completions, gold):
        text = last_text(completion)
        rewards.append(1.0 * (g in text) + 0.3 * ("<answer>" in text) + 0.2 * ("<cite>" in text) - 0.01 * min(len(text), 60))
    return rewards


def tool_reward(completions, **kwargs):
    return [0.5 if any(m["role"] == "tool" for m in c) else 0.0 for c in completions]


def build():
    config = AutoConfig.from_pretrained(MODEL)
    config.attention_dropout = 0.05
    model = AutoModelForCausalLM.from_pretrained(MODEL, config=config, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = qwen3_template
    data = Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Who is the {tie} of {name}?"},
                ],
                "gold": who,
            }
            for _, name, tie, who in ARCHIVE
        ]
    )
    return model, tokenizer, data


if __name__ == "__main__":
    model, tokenizer, data = build()
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[],
        per_device_train_batch_size=12, num_generations=6, max_completion_length=120, max_tool_calling_iterations=2,
        temperature=1.2, entropy_coef=0.005, top_entropy_quantile=0.8, learning_rate=1e-4, max_steps=4,
        logging_steps=1, save_strategy="no", gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, args=args, tools=[retrieve_documents],
        reward_funcs=[answer_reward, tool_reward], train_dataset=data,
    )
    trainer.train()
