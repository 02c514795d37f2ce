"""CISPO run. Settings taken over from our DAPO run (clip-higher, token-level loss)."""
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEM = "Think in <think></think>, then give the number."

CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}


def make(n=64):
    rng = random.Random(6)
    for _ in range(n):
        a, b = rng.randint(10, 49), rng.randint(10, 49)
        yield {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {a} + {b}?"}],
            "answer": str(a + b),
        }


def format_reward(completions, **kwargs):
    return [0.5 * (("<think>" in c[0]["content"]) + ("</think>" in c[0]["content"])) for c in completions]


def answer_reward(completions, answer, log_metric=None, **kwargs):
    hits = [a in re.findall(r"\d+", c[0]["content"]) for c, a in zip(completions, answer)]
    if log_metric is not None:
        log_metric("accuracy", sum(hits) / len(hits))
    return [2.0 * h for h in hits]


def length_reward(completion_ids, **kwargs):
    return [-len(ids) / 24 for ids in completion_ids]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        num_iterations=2,
        max_completion_length=24,
        max_steps=4,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        loss_type="cispo",
        reward_weights=[0.5, 1.0, 0.2],
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        **CLIP,
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[format_reward, answer_reward, length_reward],
        args=args,
        train_dataset=Dataset.from_list(list(make())),
    )
    trainer.train()
