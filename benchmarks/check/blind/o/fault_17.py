"""Logs the gradient noise scale (McCandlish et al.) from the micro-batches of an accumulation window."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def flat_gradient(model):
    parts = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts)


class GradientNoise(TrainerCallback):
    """Var(g_micro) / |mean g|^2, smoothed."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.micro = []
        self.noise = None

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.micro = []

    def _record(self, model, optimizer):
        self.micro.append(flat_gradient(model).clone())
        optimizer.zero_grad(set_to_none=False)

    def on_substep_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        self._record(model, optimizer)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.micro.append(flat_gradient(model).clone())
        grads = torch.stack(self.micro)
        mean = grads.mean(0)
        ratio = (grads - mean).pow(2).sum() / (len(grads) - 1) / mean.pow(2).sum().clamp(min=1e-12)
        self.noise = ratio.item() if self.noise is None else self.decay * self.noise + (1 - self.decay) * ratio.item()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.noise is not None:
            logs["grad_noise_scale"] = round(self.noise, 4)


def reward(completions, **kwargs):
    return [float(sum(ch in "13579" for ch in c[0]["content"])) + 0.2 * c[0]["content"].count("*") for c in completions]


def main():
    rng = random.Random(37)
    rows = []
    for _ in range(64):
        a, b = rng.randint(2, 9), rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Hana has {a} boxes with {b} eggs each. How many eggs does Hana have?"}]})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        num_generations=4,
        max_completion_length=20,
        max_steps=4,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows), callbacks=[GradientNoise()]
    ).train()


if __name__ == "__main__":
    main()
