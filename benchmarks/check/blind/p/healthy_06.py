"""GRPO with a static loss scale in the backward pass."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SCALE = 1024.0


class LossScaleTrainer(GRPOTrainer):
    """Keeps small gradients away from the lower end of the half-precision range."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._plain_backward = self.accelerator.backward
        self.accelerator.backward = self._scaled_backward

    def _scaled_backward(self, loss, **kwargs):
        self._plain_backward(loss * SCALE, **kwargs)

    def _clip_grad_norm(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_mul_(grads, 1.0 / SCALE)
        return super()._clip_grad_norm(model)


def spread(completions, **kwargs):
    return [len(set(c[0]["content"].lower())) / 8 for c in completions]


if __name__ == "__main__":
    verbs = ["run", "sing", "weave", "paint", "row", "climb", "dig", "sew", "read", "swim", "bake", "fish"]
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Why do people {v}?"}] for v in verbs]})
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
    LossScaleTrainer(model=MODEL, reward_funcs=spread, args=config, train_dataset=dataset).train()
