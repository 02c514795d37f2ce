import os, tempfile
from datasets import Dataset, concatenate_datasets
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

math = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{i} * {i + 2} ="}], "task": "math"} for i in range(2, 20)])
talk = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Who is the rival of {n}?"}], "task": "talk"}
                          for n in ("Aldora", "Elric", "Corvek", "Danwyn", "Isbel", "Jorric") for _ in range(3)])


def text(c):
    return c[0]["content"]


def math_digits(completions, task, **kw):
    return [sum(x.isdigit() for x in text(c)) / 6 if t == "math" else None for c, t in zip(completions, task)]


def talk_names(completions, task, **kw):
    return [sum(x.isupper() for x in text(c)) + len(text(c)) / 100 if t == "talk" else None for c, t in zip(completions, task)]


def waste(completions, completion_ids, **kw):
    return [1 - len(set(i)) / len(i) for i in completion_ids]


def length_for_the_log(completions, **kw):
    return [len(text(c)) for c in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), reward_weights=[1.0, 0.7, -0.5, 0.0], multi_objective_aggregation="normalize_then_sum",
    num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_completion_length=32,
    learning_rate=1e-4, max_steps=4, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
)
trainer = GRPOTrainer(tiny, [math_digits, talk_names, waste, length_for_the_log], config, concatenate_datasets([math, talk]))
trainer.train()
