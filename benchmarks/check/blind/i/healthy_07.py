import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class Addition:
    def __init__(self):
        self.answer = None
        self.episodes = 0

    def reset(self, a, b, **kwargs):
        self.episodes += 1
        self.answer = str(a + b)
        return f"{a} + {b} = ?"

    def _score(self, text):
        return sum(text.count(d) for d in self.answer) / (1 + len(text))


class Counting:
    def __init__(self):
        self.start = None

    def reset(self, a, **kwargs):
        self.start = a
        return f"Count upwards from {a}."

    def _score(self, text):
        return 0.2 * sum(str(self.start + k) in text for k in range(5)) + 0.01 * sum(x.isdigit() for x in text)


def environment_score(completions, environments, **kwargs):
    return [env._score(c[-1]["content"]) for c, env in zip(completions, environments)]


rows = []
for i in range(24):
    rows.append(
        {
            "prompt": [{"role": "system", "content": "Short answers."}, {"role": "user", "content": "Task: "}],
            "environment": "add" if i % 2 else "count",
            "a": i + 1,
            "b": (7 * i) % 11,
        }
    )

GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=environment_score,
    environment_factory={"add": Addition, "count": Counting},
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=16, num_generations=4,
        max_completion_length=24, learning_rate=1e-4, scale_rewards="batch", loss_type="dr_grpo",
        logging_steps=1, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
).train()
