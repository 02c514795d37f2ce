"""Few-shot GRPO on word problems, with the answers of a verifier."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
HEADER = [
    {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
    {"role": "user", "content": "Ada has 4 boxes with 5 eggs each. How many eggs does Ada have?"},
    {"role": "assistant", "content": "There are <<4*5=20>>20 eggs.\n#### 20"},
    {"role": "user", "content": ""},
]


class PromptBuilder:
    """One solved example, then the question."""

    def __init__(self, header):
        self.messages = list(header)

    def __call__(self, question):
        self.messages[-1]["content"] = question
        return self.messages


def load_problems(n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        who, what = rng.choice(["Ben", "Cleo", "Dev", "Eve"]), rng.choice(["apples", "books", "toys", "pens"])
        a, b = rng.randint(2, 20), rng.randint(2, 9)
        yield f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?", str(a * b)


build = PromptBuilder(HEADER)
prompts, answers = [], []
for question, answer in load_problems(40, seed=2):
    prompts.append(build(question))
    answers.append(answer)
train_dataset = Dataset.from_dict({"prompt": prompts, "answer": answers})


def verifier(completions, answer, **kwargs):
    rewards = []
    for completion, gold in zip(completions, answer):
        text = completion[0]["content"]
        final = text.split("####")[-1].strip() if "####" in text else text.split(" ")[-1]
        rewards.append(1.0 if final == gold else 0.0)
    return rewards


def layout(completions, **kwargs):
    return [0.2 * (c[0]["content"].count(">>") == 1) + 0.1 * ("####" in c[0]["content"]) for c in completions]


def tidy(completions, **kwargs):
    return [-0.002 * len(c[0]["content"]) for c in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=4,
    learning_rate=5e-4,
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    temperature=1.3,
)
trainer = GRPOTrainer(model=MODEL, reward_funcs=[verifier, layout, tidy], args=args, train_dataset=train_dataset)
trainer.train()
