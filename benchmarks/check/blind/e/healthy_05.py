import os
import random
import tempfile

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stream(seed):
    rng = random.Random(seed)
    capitals = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Peru": "Lima", "Japan": "Tokyo"}
    while True:
        country = rng.choice(list(capitals))
        yield {
            "prompt": [
                {"role": "system", "content": "You answer in one word."},
                {"role": "user", "content": f"What is the capital of {country}?"},
            ],
            "capital": capitals[country],
        }


class Capital:
    __name__ = "capital"

    def __call__(self, completions, capital, **kwargs):
        return [float(name.lower() in c[0]["content"].lower()) for c, name in zip(completions, capital)]


def one_word(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"].split())) - len(c[0]["content"]) / 400 for c in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=5e-4,
        bf16=True,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
        steps_per_generation=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=[Capital(), one_word],
        train_dataset=IterableDataset.from_generator(stream, gen_kwargs={"seed": 4}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()
