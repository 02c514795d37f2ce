import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_dataset(n=60):
    rng = random.Random(1)
    texts = []
    for _ in range(n):
        kind = rng.choice(["double", "half", "square"])
        value = rng.randint(1, 12) * 2
        texts.append(f"What is the {kind} of {value}?")
    texts = list(set(texts))
    return Dataset.from_dict({"text": texts})


def to_row(example):
    kind, value = example["text"].split()[3], int(example["text"].rstrip("?").split()[-1])
    answer = {"double": 2 * value, "half": value // 2, "square": value * value}[kind]
    return {"prompt": [{"role": "user", "content": example["text"]}], "answer": str(answer)}


def solved(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def concise(completions, **kwargs):
    return [1 / (1 + len(c[0]["content"])) for c in completions]


def main():
    dataset = make_dataset().map(to_row, remove_columns="text").shuffle(seed=42)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="grpo",
        temperature=0.9,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[solved, concise],
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()
