import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ScaleEnv:
    """A balance: the policy has to write weights that add up to the load."""

    def __init__(self):
        self.load = 0

    def reset(self, **kwargs):
        self.load = random.randint(5, 95)
        return f" The load is {self.load}."


def balance(completions, environments, **kwargs):
    out = []
    for completion, env in zip(completions, environments):
        weights = [int(w) for w in re.findall(r"\d{1,2}", completion[0]["content"] or "")]
        out.append(1 - min(abs(sum(weights) - env.load), 100) / 100)
    return out


def not_too_long(completions, completion_ids, **kwargs):
    return [-0.005 * len(x) for x in completion_ids]


openings = ["Balance the scale with numbers.", "Write weights that add up to the load.", "Which weights?"]
data = Dataset.from_dict({"prompt": [[{"role": "user", "content": o}] for o in openings * 10]})

trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=[balance, not_too_long],
    environment_factory=ScaleEnv,
    train_dataset=data,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=5, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=32, learning_rate=1e-4, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", logging_steps=1,
    ),
)
trainer.train()
