import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def make_rows(n=40, seed=5):
    rng = random.Random(seed)
    for _ in range(n):
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        yield {"prompt": [{"role": "user", "content": f"{a} * {b} = ?"}], "solution": a * b}


def close_to_solution(completions, solution, **kwargs):
    out = []
    for message, target in zip(completions, solution):
        digits = "".join(c for c in message[0]["content"] if c.isdigit())
        out.append(1.0 if digits == str(target) else min(len(digits), 4) / 8)
    return out


def brevity(completions, **kwargs):
    return [1.0 - len(message[0]["content"]) / 200 for message in completions]


class WindowTrainer(GRPOTrainer):
    """Normalises every optimizer window by the tokens it really trains on."""

    def _compute_loss(self, model, inputs):
        window_tokens = inputs["completion_mask"].sum()
        return super()._compute_loss(model, {**inputs, "num_items_in_batch": window_tokens})


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        num_iterations=2,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="dapo",
        mask_truncated_completions=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = WindowTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[close_to_solution, brevity],
        train_dataset=Dataset.from_list(list(make_rows())),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()
