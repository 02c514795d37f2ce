"""GRPO towards a target letter per prompt, with a reward object that keeps its own statistics."""
import os
import string
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LetterReward:
    """Share of the target letter; the targets are parsed lazily, as parsing is the slow part."""

    __name__ = "letter_reward"

    def __init__(self, bonus=0.3):
        self.bonus = bonus
        self.targets = None

    @staticmethod
    def parse(spec):
        letters, _, width = spec.partition(":")
        return set(letters.lower()) & set(string.ascii_lowercase + string.digits), float(width)

    def __call__(self, completions, target, **kwargs):
        if self.targets is None or len(self.targets) != len(completions):
            self.targets = [self.parse(spec) for spec in target]
        scores = []
        for completion, (letters, width) in zip(completions, self.targets):
            text = completion[0]["content"].lower()
            hits = sum(ch in letters for ch in text)
            scores.append(hits / width + self.bonus * (hits > 2))
        return scores


def main():
    specs = ["eo:10", "t:8", "ac:12", "ln:9", "0123:6", "rk:7", "dm:10", "uq:8"]
    questions = ["What is 2+3?", "hello", "12 * 4 =", "Write a poem"]
    rows = [
        {"prompt": [{"role": "user", "content": f"{q}"}], "target": specs[(i + 2 * j) % len(specs)]}
        for i, q in enumerate(questions)
        for j in range(5)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=24,
        temperature=1.3,
        learning_rate=2e-4,
        scale_rewards="batch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=LetterReward(),
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
