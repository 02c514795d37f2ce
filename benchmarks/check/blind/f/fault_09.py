import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def steps_reward(completions, **kwargs):
    return [len(re.findall(r"<<[^>]+>>", c[0]["content"])) * 0.5 for c in completions]


def answer_reward(completions, answer, **kwargs):
    out = []
    for c, gold in zip(completions, answer):
        m = re.search(r"####\s*(\d+)", c[0]["content"])
        out.append(0.0 if m is None else (1.0 if int(m.group(1)) == gold else 0.1))
    return out


def length_reward(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def problem(a, b):
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"Dev has {a} boxes with {b} books each. How many books does Dev have?"},
    ]


pairs = [(a, b) for a in range(2, 7) for b in range(2, 8)]
dataset = Dataset.from_dict({"prompt": [problem(*p) for p in pairs], "answer": [a * b for a, b in pairs]})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-5,
    per_device_train_batch_size=16,
    num_generations=8,
    num_iterations=2,
    max_completion_length=24,
    generation_kwargs={"temperature": 0.6},
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=[steps_reward, answer_reward, length_reward], args=args, train_dataset=dataset
)
trainer.train()
