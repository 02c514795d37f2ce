"""GRPO with environments that own task and answer; the learning rate follows the evaluation; best model is kept."""
import os
import random
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class TaskSpec:
    low: int = 2
    high: int = 60


class SumTask:
    """One arithmetic task per episode. Rows of a group carry the same seed, hence the same task."""

    spec = TaskSpec()

    def __init__(self):
        self.a = self.b = None

    def reset(self, seed=None, **kwargs):
        rng = random.Random(seed)
        self.a, self.b = rng.randint(self.spec.low, self.spec.high), rng.randint(self.spec.low, self.spec.high)
        return f" {self.a} + {self.b}?"


class DigitReward:
    __name__ = "digits_of_the_sum"

    def __call__(self, completions, environments, **kwargs):
        scores = []
        for c, env in zip(completions, environments):
            want = str(env.a + env.b)
            digits = [ch for ch in c[0]["content"] if ch.isdigit()]
            scores.append(sum(d in want for d in digits) / max(len(digits), 4))
        return scores


def compact(completion_ids, **kwargs):
    return [-0.05 * len(ids) for ids in completion_ids]


def rows(seeds):
    return Dataset.from_list(
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is"}], "seed": s} for s in seeds]
    )


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=8,
        num_generations=8,
        num_generations_eval=4,
        max_completion_length=18,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-3,
        epsilon_high=4e-3,
        beta=0.0,
        max_steps=4,
        learning_rate=2e-4,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"factor": 0.5, "patience": 0, "mode": "max"},
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
        greater_is_better=True,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=12,
    )
    GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[DigitReward(), compact],
        args=args,
        train_dataset=rows(range(100, 116)),
        eval_dataset=rows([1, 2]),
        environment_factory=SumTask,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=10)],
    ).train()


if __name__ == "__main__":
    main()
