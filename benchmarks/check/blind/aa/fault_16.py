import os
import tempfile
import time

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GuardedTrainer(GRPOTrainer):
    """Skips the backward pass of micro-batches whose loss is not finite and times the others."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.skipped = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        began = time.perf_counter()
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        loss = loss / self.args.gradient_accumulation_steps
        if torch.isfinite(loss):
            self.accelerator.backward(loss)
        else:
            self.skipped += 1
            loss = torch.zeros_like(loss)
        self._step += 1
        self._current_train_step_time += time.perf_counter() - began
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0
        return loss.detach()


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 7, 3 + i % 5
        thing = ("coins", "stamps", "books", "apples")[i % 4]
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Finn has {a} {thing}. Hana has {b} {thing}. How many {thing} do they have?"},
            ],
            "answer": str(a + b),
        })
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def correct(completions, answer, **kwargs):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-3,
        optim="sgd",
        loss_type="grpo",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GuardedTrainer(MODEL, [digits, correct], args, train_dataset=dataset())
    trainer.train()
    print("skipped", trainer.skipped)
