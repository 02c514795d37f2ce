"""Rollouts through a text completion client (the same interface as our OpenAI-compatible server),
here served by the policy itself."""
import os
import random
import tempfile
from dataclasses import dataclass

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


@dataclass
class Choice:
    text: str
    finish_reason: str


class TextClientTrainer(GRPOTrainer):
    def _complete(self, *args, **kwargs) -> list[Choice]:
        ids, _ = super()._generate_single_turn(*args, **kwargs)
        choices = []
        for row in ids:
            stopped = row[-1] in self.eos_token_ids
            text = self.processing_class.decode(row[:-1] if stopped else row)
            choices.append(Choice(text=text, finish_reason="stop" if stopped else "length"))
        return choices

    def _generate_single_turn(self, *args, **kwargs):
        choices = self._complete(*args, **kwargs)
        completion_ids = self.processing_class([c.text for c in choices], add_special_tokens=False)["input_ids"]
        for row, choice in zip(completion_ids, choices):
            if choice.finish_reason == "stop":
                row.append(self.processing_class.eos_token_id)
        completion_ids = [row[: self.max_completion_length] for row in completion_ids]
        return completion_ids, None


def rows(n=32):
    rng = random.Random(21)
    for _ in range(n):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        yield {
            "prompt": [{"role": "user", "content": f"Gus has {a} boxes with {b} eggs each. How many eggs does Gus have?"}],
            "answer": a * b,
        }


def closeness(completions, answer, **kwargs):
    out = []
    for completion, gold in zip(completions, answer):
        digits = "".join(c for c in completion[0]["content"] if c.isdigit())
        common = sum(x == y for x, y in zip(digits, str(gold)))
        out.append(common + 0.05 * len(digits))
    return out


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        max_steps=4,
        learning_rate=1e-4,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    TextClientTrainer(
        model=MODEL, reward_funcs=closeness, args=args, train_dataset=Dataset.from_list(list(rows()))
    ).train()


if __name__ == "__main__":
    main()
