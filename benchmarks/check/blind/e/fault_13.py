import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SEED = 1234


def make_dataset(n=40):
    rng = random.Random(SEED)
    rows = []
    for _ in range(n):
        price, count = rng.randint(2, 9), rng.randint(2, 9)
        text = f"One ticket costs {price} euros. What do {count} tickets cost?"
        rows.append({"prompt": [{"role": "user", "content": text}], "cost": price * count})
    return Dataset.from_list(rows)


def cost_named(completions, cost, **kwargs):
    return [float(str(c) in m[0]["content"]) for m, c in zip(completions, cost)]


def spread(completions, **kwargs):
    return [len(set(m[0]["content"])) / 40 for m in completions]


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "tickets"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dapo",
        seed=SEED,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=[cost_named, spread],
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    # loading and preparing the model draws random numbers: start from the same point whatever the model
    set_seed(SEED)
    trainer.train()


if __name__ == "__main__":
    main()
