import functools
import os
import tempfile
import time

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class DigitHunt:
    """The task: write the wanted digit as often as you can."""

    def __init__(self):
        time.sleep(0.2)  # loads the word list
        self.wanted = None

    def reset(self, wanted: str, **kwargs):
        self.wanted = wanted
        return f" Use the digit {wanted}."

    def _score(self, text):
        return text.count(self.wanted) - 0.1 * sum(ch.isdigit() for ch in text) - 0.005 * len(text)


@functools.lru_cache(maxsize=None)
def make_environment():
    return DigitHunt()


def hunt(completions, environments, **kwargs):
    return [env._score(c[-1]["content"]) for env, c in zip(environments, completions)]


rows = [{"prompt": [{"role": "user", "content": f"Game {i}."}], "wanted": str(i % 10)} for i in range(30)]
trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=hunt,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-4,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list(rows),
    environment_factory=make_environment,
)
trainer.train()
