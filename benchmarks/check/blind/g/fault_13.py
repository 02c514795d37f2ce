import os
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(MODEL)

SYSTEM = "You are a patient tutor."
questions = [f"How many days are in {n} weeks?" for n in range(2, 18)]


def to_prompt(row):
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    return {"prompt": [{"role": "user", "content": text}]}


dataset = Dataset.from_dict({"question": questions, "answer": [str(7 * n) for n in range(2, 18)]}).map(to_prompt)


def right_answer(completions, answer, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [1.0 if a in t else 0.1 * len(set(t)) / (1 + len(t)) for t, a in zip(texts, answer)]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=6,
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
    )
    GRPOTrainer(
        model=MODEL, processing_class=tokenizer, args=args, reward_funcs=right_answer, train_dataset=dataset
    ).train()
