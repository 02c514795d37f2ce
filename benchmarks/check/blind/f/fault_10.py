import os
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")

raw = Dataset.from_list([
    {"question": f"Cleo has {a} boxes with {b} cards each. How many cards does Cleo have?", "answer": a * b}
    for a in range(2, 6) for b in range(2, 7)
])


def to_text(example):
    messages = [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": example["question"]},
    ]
    return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False)}


dataset = raw.map(to_text, remove_columns=["question"])


def number_reward(completions, answer, **kwargs):
    rewards = []
    for text, gold in zip(completions, answer):
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        rewards.append(max((1.0 / (1 + abs(n - gold)) for n in numbers), default=0.0))
    return rewards


def length_reward(completions, **kwargs):
    return [min(len(text), 40) / 40 for text in completions]


trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    reward_funcs=[number_reward, length_reward],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
    ),
    train_dataset=dataset,
)
trainer.train()
