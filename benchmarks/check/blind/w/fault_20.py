"""CISPO on short questions, with the asymmetric clip range that DAPO recommends."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=48):
    rng = random.Random(29)
    rows = []
    for _ in range(n):
        a, b = rng.randint(11, 99), rng.randint(2, 9)
        rows.append({"prompt": [{"role": "user", "content": f"{a} divided by {b}, rounded down?"}], "answer": str(a // b)})
    return Dataset.from_list(rows)


def accuracy(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def concise(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=4,
        learning_rate=2e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        num_iterations=2,
        max_completion_length=24,
        loss_type="cispo",
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="none",
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=[accuracy, concise],
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
