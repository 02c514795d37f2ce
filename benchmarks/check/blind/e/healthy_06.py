import os
import random
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_rows(n=45):
    rng = random.Random(99)
    for i in range(n):
        count = rng.randint(2, 9)
        text = "Continue: " + " ".join(str(k) for k in range(i % 7, i % 7 + count))
        yield {"prompt": text, "next": i % 7 + count}


def next_number(completions, next, **kwargs):
    return [float(str(n) in text) for text, n in zip(completions, next)]


def only_sometimes(prompts, completions, **kwargs):
    """Scores the short questions only."""
    return [len(set(text)) / 20 if len(prompt) < 22 else None for prompt, text in zip(prompts, completions)]


def spaces(completions, **kwargs):
    return [text.count(" ") / (len(text) + 1) - len(text) / 500 for text in completions]


def main():
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "continue"),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=6,
        num_iterations=1,
        max_completion_length=22,
        max_steps=5,
        learning_rate=1e-4,
        loss_type="sapo",
        temperature=0.8,
        top_k=50,
        pad_to_multiple_of=8,
        mask_truncated_completions=True,
        gradient_checkpointing=True,
        reward_weights=[1.0, 0.5, 0.5],
        max_grad_norm=0.5,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[next_number, only_sometimes, spaces],
        train_dataset=Dataset.from_list(list(make_rows())),
    )
    trainer.train()


if __name__ == "__main__":
    main()
