import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def accuracy_reward(completions, solution, **kwargs):
    return [float(re.findall(r"\d+", c[0]["content"])[-1:] == [s]) for c, s in zip(completions, solution)]


def overlong_penalty(completion_ids, **kwargs):
    return [-0.1 * max(0, len(ids) - 10) for ids in completion_ids]


dataset = Dataset.from_list([
    {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Dev has {a} boxes with {b} {w} each. How many {w} does Dev have?"},
        ],
        "solution": str(a * b),
    }
    for w in ("pens", "toys", "eggs") for a, b in ((2, 6), (3, 8), (4, 7), (5, 5), (6, 3))
])

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    bf16=False,
    report_to=[],
    save_strategy="no",
    max_steps=8,
    loss_type="cispo",
    epsilon=0.2,
    epsilon_high=0.28,
    scale_rewards="batch",
    num_iterations=2,
    gradient_accumulation_steps=2,
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=24,
    learning_rate=2e-5,
)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=[accuracy_reward, overlong_penalty], args=args, train_dataset=dataset
)
trainer.train()
