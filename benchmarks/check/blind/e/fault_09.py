import contextlib
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class ChunkedTrainer(GRPOTrainer):
    """Goes through a batch in chunks of rows, forward and backward, so that long completions fit in memory.
    Only one of the chunks has to communicate."""

    chunks = 2

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        rows = inputs["completion_ids"].size(0)
        size = rows // self.chunks
        total = torch.zeros((), device=self.accelerator.device)
        for index in range(self.chunks):
            part = {
                key: value[index * size : (index + 1) * size] if torch.is_tensor(value) and value.dim() else value
                for key, value in inputs.items()
            }
            quiet = self.accelerator.no_sync(model) if index > 0 else contextlib.nullcontext()
            with quiet:
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, part) / self.chunks
                self.accelerator.backward(loss)
            total += loss.detach()
        self._step += 1
        return total


def make_dataset():
    rng = random.Random(6)
    rows = []
    for _ in range(40):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        rows.append({"prompt": [{"role": "user", "content": f"What is {a} times {b}?"}], "product": str(a * b)})
    return Dataset.from_list(rows)


def product_in_text(completions, product, **kwargs):
    return [float(p in c[0]["content"]) for c, p in zip(completions, product)]


def short(completions, **kwargs):
    return [-len(c[0]["content"]) / 100 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-4,
        loss_type="grpo",
        importance_sampling_level="sequence",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = ChunkedTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        args=args,
        reward_funcs=[product_in_text, short],
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()


if __name__ == "__main__":
    main()
