"""Two observers: an EMA of the policy (saved beside each checkpoint) and the gradient noise of the micro-batches."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class Ema(TrainerCallback):
    def __init__(self, decay=0.7):
        self.decay, self.shadow = decay, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for s, p in zip(self.shadow, model.parameters()):
            s.mul_(self.decay).add_(p, alpha=1 - self.decay)
        backup = [p.detach().clone() for p in model.parameters()]
        for p, s in zip(model.parameters(), self.shadow):
            p.copy_(s)
        try:
            model.save_pretrained(os.path.join(args.output_dir, f"ema-{state.global_step}"))
        finally:
            for p, b in zip(model.parameters(), backup):
                p.copy_(b)


class MicroBatchNoise(TrainerCallback):
    """The accumulated gradient is only read; a micro-batch's own part is the difference to the sum before it."""

    def __init__(self):
        self.before, self.parts, self.value = None, [], None

    def _read(self, model):
        total = torch.cat([p.grad.detach().flatten() for p in model.parameters() if p.grad is not None])
        self.parts.append(total if self.before is None else total - self.before)
        self.before = total

    def on_step_begin(self, args, state, control, **kwargs):
        self.before, self.parts = None, []

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        self._read(model)

    def on_step_end(self, args, state, control, **kwargs):
        if len(self.parts) > 1:
            stacked = torch.stack(self.parts)
            self.value = (stacked.var(0).sum() / stacked.mean(0).square().sum()).item()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.value is not None:
            logs["noise"] = self.value


def reward(completions, **kwargs):
    return [float(sum(ch in "02468" for ch in c[0]["content"])) for c in completions]


if __name__ == "__main__":
    rng = random.Random(5)
    rows = [
        {"prompt": [{"role": "user", "content": f"Eve has {rng.randint(2, 9)} boxes with {rng.randint(10, 99)} cards each. How many cards does Eve have?"}]}
        for _ in range(64)
    ]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=3, num_generations=4,
        max_completion_length=20, max_steps=4, learning_rate=1e-4, max_grad_norm=0.5, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="steps", save_steps=1,
    )
    GRPOTrainer(
        model=MODEL, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows),
        callbacks=[Ema(), MicroBatchNoise()],
    ).train()
