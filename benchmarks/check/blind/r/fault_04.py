"""Training with an evaluation on held-out sums after each step.

Rollouts explore at temperature 1.0; the evaluation samples at a low temperature, which is
closer to how the model is served.
"""

import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
EVAL_TEMPERATURE = 0.3


def sums(n, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        a, b = rng.randint(2, 60), rng.randint(2, 60)
        rows.append({"prompt": [{"role": "user", "content": f"Compute {a} + {b}."}], "answer": str(a + b)})
    return Dataset.from_list(rows)


def answer_reward(completions, answer, **kwargs):
    rewards = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        hit = 1.0 if target in text else 0.0
        digits = sum(c.isdigit() for c in text) / max(len(text), 1)
        rewards.append(hit + digits)
    return rewards


def length_reward(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


class ServedEvalTrainer(GRPOTrainer):
    """Evaluates with the sampling settings of the deployment."""

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        self.generation_config.temperature = EVAL_TEMPERATURE
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        reward = metrics.get(f"{metric_key_prefix}_reward")
        if reward is not None:
            print(f"step {self.state.global_step}: served reward {reward:.3f}")
        return metrics


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="sums-"),
        use_cpu=True, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, per_device_eval_batch_size=8,
        num_generations=4, num_generations_eval=2, max_completion_length=16,
        temperature=1.0, learning_rate=3e-4, max_steps=3, logging_steps=1,
        eval_strategy="steps", eval_steps=1,
    )
    trainer = ServedEvalTrainer(
        model=MODEL,
        reward_funcs=[answer_reward, length_reward],
        args=args,
        train_dataset=sums(24, seed=0),
        eval_dataset=sums(4, seed=1),
    )
    trainer.train()
