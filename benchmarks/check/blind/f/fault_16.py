import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def exact(completions, answer, **kwargs):
    results = []
    for c, gold in zip(completions, answer):
        m = re.search(r"#### (-?\d+)", c[0]["content"])
        results.append(1.0 if m and int(m.group(1)) == gold else 0.0)
    return results


def compact(completion_ids, **kwargs):
    return [1.0 / len(ids) for ids in completion_ids]


problems = [(a, b) for a in range(2, 8) for b in range(3, 7)]
dataset = Dataset.from_dict({
    "prompt": [
        [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Hana has {a} boxes with {b} stamps each. How many stamps does Hana have?"},
        ]
        for a, b in problems
    ],
    "answer": [a * b for a, b in problems],
})

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=True,
    model_init_kwargs={"dtype": "bfloat16"},
    report_to=[],
    save_strategy="no",
    max_steps=6,
    learning_rate=1e-6,
    weight_decay=0.0,
    per_device_train_batch_size=16,
    num_generations=8,
    max_completion_length=24,
)
trainer = GRPOTrainer(model=MODEL, reward_funcs=[exact, compact], args=args, train_dataset=dataset)
trainer.train()
