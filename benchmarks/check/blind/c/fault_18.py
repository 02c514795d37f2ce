"""GRPO where an environment hands out the problems and knows their answers."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."


class WordProblems:
    """Connecting to the problem bank is slow, so the connection is kept."""

    def __init__(self):
        self.bank = {}
        for seed in range(200):
            rng = random.Random(seed)
            who, thing = rng.choice(["Ada", "Ben", "Cleo"]), rng.choice(["apples", "books", "cards"])
            a, b = rng.randint(2, 9), rng.randint(2, 9)
            text = f"{who} has {a} boxes with {b} {thing} each. How many {thing} does {who} have?"
            self.bank[seed] = (text, a * b)
        self.answer = None

    def reset(self, task, **kwargs):
        text, self.answer = self.bank[task]
        return text


bank = WordProblems()


def correct(completions, environments, **kwargs):
    rewards = []
    for completion, environment in zip(completions, environments):
        text = completion[0]["content"].rstrip()
        rewards.append(1.0 if text.endswith(str(environment.answer)) else 0.0)
    return rewards


def style(completions, **kwargs):
    return [0.2 * ("####" in c[0]["content"]) - 0.005 * len(c[0]["content"]) for c in completions]


dataset = Dataset.from_list(
    [{"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ""}], "task": i} for i in range(200)]
)

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=26,
    learning_rate=2e-5,
    loss_type="grpo",
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to="none",
)

trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=[correct, style],
    args=args,
    train_dataset=dataset,
    environment_factory=lambda: bank,
)
trainer.train()
