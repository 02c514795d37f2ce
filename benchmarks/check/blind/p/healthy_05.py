"""GRPO with gradients offloaded to host buffers as soon as they are accumulated."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class GradientStore:
    """Only one parameter's gradient is on the device at a time."""

    def __init__(self, model):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.buffers = {p: torch.zeros(p.shape, device="cpu", dtype=torch.float32) for p in self.parameters}
        self.touched = set()
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.collect)

    @torch.no_grad()
    def collect(self, parameter):
        self.buffers[parameter] += parameter.grad.to("cpu", torch.float32)
        self.touched.add(parameter)
        parameter.grad = None

    @torch.no_grad()
    def restore(self):
        for parameter in self.touched:
            buffer = self.buffers[parameter]
            parameter.grad = buffer.to(parameter.device, parameter.dtype, copy=True)
            buffer.zero_()
        self.touched.clear()


class OffloadedGradientTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gradient_store = GradientStore(self.model)

    def _clip_grad_norm(self, model):
        self.gradient_store.restore()
        return super()._clip_grad_norm(model)


def n_and_length(completions, **kwargs):
    return [c[0]["content"].count("n") / 4 + len(c[0]["content"]) / 70 for c in completions]


dataset = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"Which is {w}?"}] for w in
                ("best", "worst", "first", "last", "oldest", "newest", "near", "far", "big", "small", "up", "down")]}
)
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,
    num_generations=4,
    max_completion_length=20,
    temperature=1.2,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    report_to=[],
)
trainer = OffloadedGradientTrainer(model=MODEL, reward_funcs=n_and_length, args=config, train_dataset=dataset)
trainer.train()
