import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

NUM_GENERATIONS = 4
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM_PROMPT = "Solve the problem step by step. End with #### and the number."

problems = []
for who, thing in [("Ada", "apples"), ("Ben", "books"), ("Cleo", "cards"), ("Dev", "eggs"), ("Eve", "pens")]:
    for boxes, each in [(12, 13), (14, 22), (17, 19), (21, 15), (23, 28), (26, 11)]:
        problems.append((f"{who} has {boxes} boxes with {each} {thing} each. How many {thing} does {who} have?", boxes * each))

dataset = Dataset.from_dict(
    {
        "prompt": [[{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": q}] for q, _ in problems],
        "answer": [a for _, a in problems],
    }
)


def last_number(text):
    found = re.findall(r"\d+", text)
    return int(found[-1][:8]) if found else None


def correctness_reward(prompts, completions, answer, **kwargs):
    scores = []
    for i, completion in enumerate(completions):
        # every prompt has NUM_GENERATIONS completions
        gold = answer[i // NUM_GENERATIONS]
        guess = last_number(completion[0]["content"])
        if guess is None:
            scores.append(0.0)
        elif guess == gold:
            scores.append(2.0)
        else:
            scores.append(max(0.0, 1 - abs(guess - gold) / gold))
    return scores


training_args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    learning_rate=1e-4,
    max_steps=4,
    per_device_train_batch_size=8,
    num_generations=NUM_GENERATIONS,
    max_completion_length=24,
    use_cpu=True,
    bf16=False,
    logging_steps=1,
    report_to="none",
    save_strategy="no",
)

trainer = GRPOTrainer(model=MODEL, reward_funcs=[correctness_reward], args=training_args, train_dataset=dataset)
trainer.train()
