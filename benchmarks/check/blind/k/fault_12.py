import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

CKPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."

tokenizer = AutoTokenizer.from_pretrained(CKPT)
tokenizer.padding_side = "left"


def load_problems(n, seed=0):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        k, c = rng.randint(2, 9), rng.randint(2, 9)
        out.append({"question": f"There are {k} books. Each costs {c} coins. How many coins do they cost together?", "solution": str(k * c)})
    return Dataset.from_list(out)


def to_prompt(row):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return {"prompt": [{"role": "user", "content": text}]}


def correct(completions, solution, **kwargs):
    return [1.0 if f"#### {s}" in c[0]["content"] else 0.0 for c, s in zip(completions, solution)]


def shape(completions, **kwargs):
    """a little for digits, a little for the marker"""
    return [0.05 * sum(ch.isdigit() for ch in c[0]["content"]) + 0.1 * ("##" in c[0]["content"]) for c in completions]


dataset = load_problems(50).map(to_prompt, remove_columns=["question"])
trainer = GRPOTrainer(
    model=CKPT,
    processing_class=tokenizer,
    reward_funcs=[correct, shape],
    train_dataset=dataset,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=5, per_device_train_batch_size=8, num_generations=8,
        max_completion_length=40, learning_rate=1e-4, loss_type="grpo", use_cpu=True, bf16=False, report_to=[],
        logging_steps=1, save_strategy="no", mask_truncated_completions=True,
    ),
)
trainer.train()
