"""GRPO with a static loss scale, as for half-precision gradients, and SGD to save optimizer memory."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SCALE = 256.0


class LossScaling(TrainerCallback):
    """Takes the scale out again before the optimizer sees the gradients."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_div_(grads, SCALE)


class ScaledTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **kw: backward(loss * SCALE, **kw)
        self.add_callback(LossScaling())


def capital_or_space(completions, **kwargs):
    return [sum(ch in "_ ABCDEFG" for ch in c[0]["content"]) / 4 for c in completions]


dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Count to {n}."}] for n in range(3, 15)]})
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=20,
    temperature=1.2,
    optim="sgd",
    learning_rate=5e-3,
    max_grad_norm=1.0,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
ScaledTrainer(model=MODEL, reward_funcs=capital_or_space, args=config, train_dataset=dataset).train()
