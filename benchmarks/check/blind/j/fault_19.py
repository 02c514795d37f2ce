"""Config in a dictionary, as our YAML loader gives it."""
import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))

RECIPE = {
    "model": os.path.join(HERE, "tiny"),
    "data": {"rows": 60, "seed": 9},
    "sampling": {"temperature": 0.5, "do_sample": True},
    "grpo": {
        "num_generations": 8,
        "max_completion_length": 44,
        "num_iterations": 2,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dapo",
    },
    "optim": {"learning_rate": 2e-4, "lr_scheduler_type": "linear", "max_grad_norm": 1.0},
    "run": {"per_device_train_batch_size": 16, "max_steps": 6, "logging_steps": 1, "save_strategy": "no"},
}


class Rewards:
    def __init__(self, digits_per_point=12):
        self.digits_per_point = digits_per_point

    def functions(self):
        return [self.has_result, self.density]

    def has_result(self, completions, result, **kwargs):
        return [1.0 if r in c[0]["content"] else 0.0 for c, r in zip(completions, result)]

    def density(self, completions, **kwargs):
        return [sum(ch.isdigit() for ch in c[0]["content"]) / self.digits_per_point for c in completions]


def load(rows, seed):
    rng = random.Random(seed)
    system = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
    items = []
    for _ in range(rows):
        a, b = rng.randint(11, 40), rng.randint(2, 9)
        user = {"role": "user", "content": f"Dev has {a} boxes with {b} books each. How many books does Dev have?"}
        items.append({"prompt": [system, user], "result": str(a * b)})
    return Dataset.from_list(items)


def make_trainer(recipe):
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        generation_kwargs=recipe["sampling"],
        **recipe["grpo"],
        **recipe["optim"],
        **recipe["run"],
    )
    return GRPOTrainer(
        model=recipe["model"],
        reward_funcs=Rewards().functions(),
        args=args,
        train_dataset=load(**recipe["data"]),
    )


if __name__ == "__main__":
    make_trainer(RECIPE).train()
