import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny")


def build_dataset(n=48):
    rng = random.Random(11)
    rows = []
    for _ in range(n):
        a, b = rng.randint(1, 60), rng.randint(1, 39)
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"What is {a} + {b}? Answer with a number."}],
                "answer": str(a + b),
            }
        )
    return Dataset.from_list(rows)


def answer_digits(completions, answer, **kwargs):
    scores = []
    for completion, target in zip(completions, answer):
        text = completion[0]["content"]
        scores.append(1.0 if target in text else 0.2 * len(set(target) & set(text)))
    return scores


def tidy(completions, **kwargs):
    return [-0.02 * sum(not c.isalnum() for c in completion[0]["content"]) for completion in completions]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-sums"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_generations=4,
        max_completion_length=24,
        max_steps=6,
        learning_rate=1e-4,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        reward_weights=[1.0, 0.5],
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=3,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[answer_digits, tidy],
        args=args,
        train_dataset=build_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
