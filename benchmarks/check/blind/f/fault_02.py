import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = "Solve the problem step by step. End with #### and the number."


def build():
    names = ["Ada", "Ben", "Cleo", "Dev", "Eve", "Finn", "Gus", "Hana"]
    things = ["apples", "books", "cards", "eggs", "pens", "shells", "stamps", "toys"]
    prompts, answers = [], []
    for i in range(24):
        a, b = 2 + i % 5, 3 + i % 7
        who, what = names[i % 8], things[(i * 3) % 8]
        text = f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"
        prompts.append([{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}])
        answers.append(a * b)
    return Dataset.from_dict({"prompt": prompts, "answer": answers})


train_dataset = build()


def correctness_reward(prompts, completions, **kwargs):
    scores = []
    for completion, gold in zip(completions, train_dataset["answer"]):
        text = completion[0]["content"]
        numbers = re.findall(r"\d+", text.split("####")[-1])
        if not numbers:
            scores.append(-1.0)
        else:
            scores.append(1.0 / (1.0 + abs(int(numbers[-1]) - gold)))
    return scores


training_args = GRPOConfig(
    output_dir=os.path.join(tempfile.gettempdir(), "grpo-boxes"),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=2e-5,
    lr_scheduler_type="constant",
    per_device_train_batch_size=12,
    num_generations=6,
    max_completion_length=20,
    logging_steps=2,
)

trainer = GRPOTrainer(
    model=os.path.join(HERE, "tiny"),
    reward_funcs=correctness_reward,
    args=training_args,
    train_dataset=train_dataset,
)
trainer.train()
