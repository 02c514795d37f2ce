import os
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def question(i):
    name = ["Ada", "Ben", "Cleo"][i % 3]
    thing = ["apples", "shells", "stamps", "books"][i % 4]
    return [
        {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
        {"role": "user", "content": f"{name} has {3 + i % 6} boxes with {2 + i % 5} {thing} each. How many {thing} does {name} have?"},
    ]


def digits(completions, **kwargs):
    out = []
    for c in completions:
        text = c[0]["content"]
        out.append(sum(ch.isdigit() for ch in text) / max(len(text), 1))
    return out


def letters(completions, **kwargs):
    return [len(set(c[0]["content"].lower())) / 26 for c in completions]


class TemperatureSchedule(TrainerCallback):
    """Explore first, then sharpen."""

    def __init__(self, values):
        self.values = values
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        value = self.values[min(state.global_step, len(self.values) - 1)]
        self.trainer.generation_config.temperature = value

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["temperature"] = self.trainer.generation_config.temperature


def run():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=32,
        learning_rate=1e-4,
        temperature=1.0,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=11,
    )
    schedule = TemperatureSchedule([1.0, 0.7, 0.5])
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[digits, letters],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": question(i)} for i in range(24)]),
        callbacks=[schedule],
    )
    schedule.trainer = trainer
    trainer.train()


run()
