"""GSPO: sequence-level ratios, generations reused, clip-higher and a two-sided bound."""
import os
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}


def equation(completions, **kwargs):
    out = []
    for c in completions:
        m = re.search(r"<<(\d+)\*(\d+)=(\d+)>>", c[0]["content"])
        out.append(0.0 if not m else 0.5 + 0.5 * (int(m[1]) * int(m[2]) == int(m[3])))
    return out


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 30 for c in completions]


dataset = Dataset.from_dict({
    "prompt": [
        [SYSTEM, {"role": "user", "content": f"{n} has {a} boxes with {b} eggs each. How many eggs does {n} have?"}]
        for n in ("Ada", "Ben", "Finn") for a in (2, 3, 5) for b in (4, 7)
    ]
})
args = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=8,
    importance_sampling_level="sequence", loss_type="grpo", epsilon=3e-3, epsilon_high=4e-3, delta=1.5,
    gradient_accumulation_steps=2, steps_per_generation=4, num_iterations=2,
    per_device_train_batch_size=6, num_generations=3, max_completion_length=28, learning_rate=2e-5,
    lr_scheduler_type="constant_with_warmup", warmup_steps=2,
)
GRPOTrainer(model=MODEL, reward_funcs=[equation, variety], args=args, train_dataset=dataset).train()
