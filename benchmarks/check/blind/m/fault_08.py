"""R1-Zero style run: an answer reward on what follows the reasoning, plus a format reward."""
import os
import re
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def answer_reward(completions, answer, **kwargs):
    """Exact digits score 1, the rest by how many of its characters are digits at all."""
    scores = []
    for completion, target in zip(completions, answer):
        message = completion[0]
        # reasoning does not count as an answer, whether it was closed or not
        message["content"] = re.sub(r"<think>.*?(</think>|$)", "", message["content"], flags=re.S).strip()
        text = message["content"]
        if target in text:
            scores.append(1.0)
        else:
            scores.append(0.3 * sum(c.isdigit() for c in text) / max(len(text), 1))
    return scores


def format_reward(completions, **kwargs):
    """<think> first, exactly once, and closed again."""
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        scores.append(0.3 * text.startswith("<think>") + 0.2 * (text.count("<think>") == 1) + 0.5 * ("</think>" in text))
    return scores


def length_penalty(completion_ids, **kwargs):
    return [-len(ids) / 200 for ids in completion_ids]


rows = [
    {"prompt": [{"role": "user", "content": f"Add {a} and {b}."}], "answer": str(a + b)}
    for a in range(2, 12)
    for b in range(3, 9)
]

config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    num_generations=8,
    max_completion_length=32,
    reward_weights=[1.0, 0.5, 1.0],
    learning_rate=1e-4,
    max_steps=3,
    logging_steps=1,
    log_completions=False,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    seed=1,
)
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
    reward_funcs=[answer_reward, format_reward, length_penalty],
    args=config,
    train_dataset=Dataset.from_list(rows),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()
