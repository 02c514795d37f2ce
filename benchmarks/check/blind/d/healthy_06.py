"""GSPO: sequence-level ratios, each batch of generations used twice, in two slices."""
import os
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


def build(n=64):
    rng = random.Random(31)
    rows = []
    for _ in range(n):
        a, b, c = (rng.randint(2, 20) for _ in range(3))
        rows.append({"prompt": [{"role": "user", "content": f"What is {a} + {b} + {c}?"}], "answer": str(a + b + c)})
    return Dataset.from_list(rows).train_test_split(test_size=8, seed=0)


def correct(completions, answer, **kwargs):
    return [1.0 * (a in re.findall(r"\d+", c[0]["content"])) for c, a in zip(completions, answer)]


def shape(completions, completion_ids, **kwargs):
    return [
        0.3 * c[0]["content"].strip().isdigit() - 0.02 * len(ids) for c, ids in zip(completions, completion_ids)
    ]


def main():
    data = build()
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_generations=4,
        num_generations_eval=2,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-6,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=0.02,
        epsilon_high=0.03,
        eval_strategy="steps",
        eval_steps=2,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[correct, shape],
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["test"],
    )
    trainer.train()


if __name__ == "__main__":
    main()
