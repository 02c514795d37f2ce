"""Two environments in one run: a number game that scores itself and sums that a reward function scores."""
import os
import random
import re
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny", "sft")


class Game:
    def __init__(self):
        self.secret, self.guesses = 0, []

    def reset(self, low, high, secret, **kwargs) -> str:
        self.secret, self.guesses = secret, []
        return f"Guess my number between {low} and {high}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        self.guesses.append(int(number))
        return "right" if int(number) == self.secret else "lower" if int(number) > self.secret else "higher"

    def get_reward(self) -> float:
        return max((1.0 / (1 + abs(g - self.secret)) for g in self.guesses), default=-0.5)


class Sums:
    def reset(self, low, high, **kwargs) -> str:
        return f"What is {low} + {high}?"

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: First number.
            b: Second number.
        """
        return int(a) + int(b)


def sum_reward(environments, completions, low, high, **kwargs):
    scores = []
    for environment, messages, x, y in zip(environments, completions, low, high):
        if not isinstance(environment, Sums):
            scores.append(None)
            continue
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        found = [int(n[:6]) for n in re.findall(r"\d+", text)]
        scores.append(1.0 if x + y in found else 0.01 * len(set(text)))
    return scores


def main():
    rng = random.Random(23)
    rows = []
    for i in range(40):
        low = rng.randint(1, 20)
        high = low + rng.randint(6, 30)
        rows.append(
            {
                "prompt": [{"role": "user", "content": ""}],
                "environment": "game" if i % 2 else "sums",
                "low": low,
                "high": high,
                "secret": rng.randint(low, high),
            }
        )
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_generations=4, max_completion_length=120,
        max_tool_calling_iterations=2, max_steps=4, learning_rate=1e-5, loss_type="grpo", bf16=False, use_cpu=True,
        logging_steps=1, report_to="none", save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL, processing_class=tokenizer, reward_funcs=sum_reward, args=args,
        train_dataset=Dataset.from_list(rows), environment_factory={"game": Game, "sums": Sums},
    )
    trainer.train()


if __name__ == "__main__":
    main()
