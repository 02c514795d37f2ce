"""GRPO on arithmetic, with completions cleaned of control tokens before they reach verifier and trainer."""
import os
import re
import tempfile
from dataclasses import dataclass, field

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class CleanConfig:
    control_tokens: tuple = ("<|im_end|>", "<|endoftext|>")
    keep_at_least: int = 1


class CleanCompletionTrainer(GRPOTrainer):
    """Some of our verifiers choke on control tokens at the end of `completion_ids`, so these are removed here."""

    clean = CleanConfig()

    def _generate_single_turn(self, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        control = {self._tokenizer.convert_tokens_to_ids(t) for t in self.clean.control_tokens}
        cleaned = []
        for ids in completion_ids:
            ids = list(ids)
            while len(ids) > self.clean.keep_at_least and ids[-1] in control:
                ids.pop()
            cleaned.append(ids)
        if logprobs is not None:
            logprobs = [lp[: len(ids)] for lp, ids in zip(logprobs, cleaned)]
        return cleaned, logprobs


class Verifier:
    __name__ = "verifier"
    number = re.compile(r"\d+")

    def __call__(self, completions, answer, **kwargs):
        scores = []
        for c, truth in zip(completions, answer):
            found = self.number.findall(c[0]["content"])
            if not found:
                scores.append(0.0)
                continue
            last = found[-1][:12]
            same = sum(x == y for x, y in zip(last[::-1], str(truth)[::-1]))
            scores.append(0.3 + 0.5 * same / len(str(truth)) - 0.02 * abs(len(last) - len(str(truth))))
        return scores


def length_penalty(completion_ids, **kwargs):
    return [-0.03 * len(ids) for ids in completion_ids]


def main():
    rows = []
    for a, b in [(3, 4), (10, 10), (15, 21), (8, 28), (40, 4), (12, 24), (6, 14), (30, 27)]:
        rows.append({"prompt": [{"role": "user", "content": f"What is {a}+{b}?"}], "answer": a + b})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=20,
        max_steps=4,
        learning_rate=3e-4,
        beta=0.01,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=19,
    )
    trainer = CleanCompletionTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[Verifier(), length_penalty],
        args=args,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
