"""GRPO on a mix of short and long questions; the token budget of a prompt is bounded."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Answer with one number."
PROMPT_BUDGET = 72  # tokens


def make_dataset(n=48):
    rng = random.Random(5)
    rows = []
    for i in range(n):
        a, b, c = (rng.randint(2, 30) for _ in range(3))
        short = f"What is {a} * {b}?"
        long = (
            f"A shop sells pens in boxes of {a}. Mia buys {b} boxes, gives {c} pens to her brother and then finds "
            f"{a} more at home. How many pens does she have?"
        )
        content, answer = (long, a * b - c + a) if i % 2 else (short, a * b)
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
                "answer": str(answer),
            }
        )
    return Dataset.from_list(rows)


def number_reward(completions, answer, **kwargs):
    scores = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        scores.append(float(target in text) + 0.05 * sum(c.isdigit() for c in text) - 0.02 * len(text))
    return scores


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        learning_rate=2e-4,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=16,
        # takes the place of `max_prompt_length`, which newer releases no longer have
        chat_template_kwargs={"truncation": True, "max_length": PROMPT_BUDGET},
    )
    trainer = GRPOTrainer(
        model=TINY,
        reward_funcs=number_reward,
        args=args,
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()


if __name__ == "__main__":
    main()
