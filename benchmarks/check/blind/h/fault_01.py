"""GRPO on short sums, prompts rendered ahead of time."""
import os, random, tempfile
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")
SYSTEM = "You are a careful calculator."

tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")


def render(row):
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"What is {row['a']} + {row['b']}?"},
    ]
    return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False)}


rng = random.Random(0)
raw = Dataset.from_dict({"a": [rng.randint(1, 40) for _ in range(32)], "b": [rng.randint(1, 40) for _ in range(32)]})
train = raw.map(render)


def digit_share(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c) / max(len(c), 1) for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_generations=4, max_completion_length=20,
        learning_rate=2e-4, max_steps=5, logging_steps=1,
    )
    trainer = GRPOTrainer(MODEL, reward_funcs=digit_share, args=args, train_dataset=train, processing_class=tokenizer)
    trainer.train()


if __name__ == "__main__":
    main()
