"""Each rollout talks to an environment of its own that hands out the problem."""
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


def problem_bank():
    bank = {}
    for seed in range(120):
        rng = random.Random(1000 + seed)
        who, thing = rng.choice(["Eve", "Finn", "Gus"]), rng.choice(["pens", "eggs", "shells"])
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        bank[seed] = (f"{who} has {a} boxes with {b} {thing} each. How many {thing} does {who} have?", a * b)
    return bank


BANK = problem_bank()


class Problem:
    def __init__(self):
        self.answer = None

    def reset(self, task, **kwargs):
        text, self.answer = BANK[task]
        return text


def correct(completions, environments, **kwargs):
    rewards = []
    for completion, environment in zip(completions, environments):
        numbers = re.findall(r"\d+", completion[0]["content"])
        rewards.append(1.0 if numbers and int(numbers[-1]) == environment.answer else 0.0)
    return rewards


def concise(completions, **kwargs):
    return [-0.01 * len(c[0]["content"]) for c in completions]


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[correct, concise],
        train_dataset=Dataset.from_list(
            [
                {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ""}], "task": i}
                for i in range(120)
            ]
        ),
        environment_factory=Problem,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=26,
            learning_rate=2e-5,
            beta=0.02,
            loss_type="dapo",
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )
    trainer.train()
