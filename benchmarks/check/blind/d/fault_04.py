"""Guess-the-number environment. The model calls `guess` until it is right or gives up."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny", "sft")


class GuessEnvironment:
    guesses: list = []

    def reset(self, low, high, secret, **kwargs) -> str | None:
        self.low, self.high, self.secret = low, high, secret
        self.guesses.clear()
        return None

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        number = int(number)
        self.guesses.append(number)
        if number == self.secret:
            return "right"
        return "lower" if number > self.secret else "higher"


def closeness(environments, secret, **kwargs):
    """1 for the secret number, less for a guess that is further away, 0 without one."""
    rewards = []
    for environment, value in zip(environments, secret):
        if not environment.guesses:
            rewards.append(0.0)
            continue
        best = min(abs(g - value) for g in environment.guesses)
        rewards.append(1.0 / (1.0 + best))
    return rewards


def build_dataset(n=40):
    rng = random.Random(11)
    rows = []
    for _ in range(n):
        low = rng.randint(1, 20)
        high = low + rng.randint(6, 30)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"Guess my number between {low} and {high}."}],
                "low": low,
                "high": high,
                "secret": rng.randint(low, high),
            }
        )
    return Dataset.from_list(rows)


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=110,
        max_tool_calling_iterations=2,
        max_steps=4,
        learning_rate=1e-5,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer,
        reward_funcs=closeness,
        args=args,
        train_dataset=build_dataset(),
        environment_factory=GuessEnvironment,
    )
    trainer.train()
