import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(1234)
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Throughput(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        print(f"{model.__class__.__name__}: {size / 2**20:.2f} MiB of weights")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "step_time" in logs:
            print(f"{state.global_step:3d} reward {logs['reward']:.3f} grad {logs['grad_norm']:.3f} {logs['step_time']:.2f}s")


def chat(question):
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": question},
    ]


def corpus():
    rng = random.Random(44)
    for _ in range(72):
        a, b = rng.randint(2, 30), rng.randint(2, 9)
        who, what = rng.choice(["Ada", "Eve", "Gus"]), rng.choice(["stamps", "cards", "apples"])
        yield {"prompt": chat(f"{who} has {a} boxes with {b} {what} each. How many {what} does {who} have?"), "y": a * b}


def correctness(completions, y, **kwargs):
    return [2.0 * c[0]["content"].endswith(str(t)) for c, t in zip(completions, y)]


def digits(completions, **kwargs):
    return [0.05 * sum(ch.isdigit() for ch in c[0]["content"]) for c in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    model_init_kwargs={"dtype": torch.bfloat16},
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    weight_decay=0.0,
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=44,
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    disable_tqdm=True,
)

if __name__ == "__main__":
    trainer = GRPOTrainer(
        MODEL,
        reward_funcs=[correctness, digits],
        args=config,
        train_dataset=Dataset.from_list(list(corpus())),
        callbacks=[Throughput()],
    )
    trainer.train()
