"""Reward shaping that follows the run, and a term for variety within a group."""
import os
import random
import tempfile
from collections import Counter, defaultdict

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class FadingLength:
    """Short answers matter more and more: the weight grows from 0.2 to 1 over the first steps."""

    __name__ = "fading_length"

    def __init__(self, ramp=4, scale=0.02):
        self.ramp, self.scale = ramp, scale

    def __call__(self, completion_ids, trainer_state, **kwargs):
        weight = 0.2 + 0.8 * min(trainer_state.global_step / self.ramp, 1.0)
        return [-weight * self.scale * len(ids) for ids in completion_ids]


class Variety:
    """A text that other rows of the same prompt repeat shares the credit with them."""

    __name__ = "variety"

    def __init__(self, credit=0.5):
        self.credit = credit

    def __call__(self, prompts, completions, **kwargs):
        texts = [c[0]["content"].strip().lower() for c in completions]
        seen = defaultdict(Counter)
        for prompt, text in zip(prompts, texts):
            seen[prompt[-1]["content"]][text] += 1
        return [self.credit / seen[p[-1]["content"]][t] for p, t in zip(prompts, texts)]


def solved(completions, gold, log_metric=None, **kwargs):
    hits = [float(c[0]["content"].endswith(g)) for c, g in zip(completions, gold)]
    if log_metric is not None:
        log_metric("solved_share", sum(hits) / len(hits))
    return hits


def make(n):
    rng = random.Random(29)
    for _ in range(n):
        a, b = rng.randint(2, 20), rng.randint(2, 9)
        what = rng.choice(["stamps", "shells", "eggs"])
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Cleo has {a} boxes with {b} {what} each. How many {what} does Cleo have?"},
            ],
            "gold": str(a * b),
        }


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=12,
        num_generations=6,
        max_completion_length=56,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[1.0, 0.3, 0.4],
        loss_type="sapo",
        learning_rate=1e-4,
        optim="adafactor",
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[solved, FadingLength(), Variety()],
        train_dataset=Dataset.from_list(list(make(60))),
    )
    trainer.train()


if __name__ == "__main__":
    main()
