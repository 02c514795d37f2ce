import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

CITIES = ["Oslo", "Rome", "Lima", "Cairo", "Quito", "Delhi", "Paris", "Kyoto", "Accra", "Hanoi", "Dakar", "Minsk"]


def build_prompts():
    """One renderer per city, called when the dataset is built; other kinds of question will be added here."""
    renderers = []
    for city in CITIES:
        question = f"Name a river close to {city}, and say how long it is."
        renderers.append(lambda: [{"role": "user", "content": question}])
    return [render() for render in renderers]


def has_city(completions, city, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [sum(t.count(ch) for ch in set(name)) / max(1, len(t)) for t, name in zip(texts, city, strict=True)]


def compact(completion_ids, **kwargs):
    return [0.2 - len(ids) / 100 for ids in completion_ids]


def main():
    data = Dataset.from_dict({"prompt": build_prompts(), "city": CITIES})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=2e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=24,
        save_strategy='no',
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=[has_city, compact],
        args=args,
        train_dataset=data,
    )
    trainer.train()


if __name__ == "__main__":
    main()
