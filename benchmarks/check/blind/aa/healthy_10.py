import os
import tempfile
import time

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class InstrumentedTrainer(GRPOTrainer):
    """Own clipping, timed steps and checkpoints from a host copy."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds, self.norms = [], []

    def training_step(self, model, inputs, num_items_in_batch=None):
        began = time.perf_counter()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.seconds.append(time.perf_counter() - began)
        return loss

    @torch.no_grad()
    def _clip_grad_norm(self, model):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = sum(g.double().square().sum() for g in grads).sqrt()
        scale = min(1.0, self.args.max_grad_norm / (norm.item() + 1e-6))
        for g in grads:
            g.mul_(scale)
        self.norms.append(norm.item())
        return norm.float()

    def _save(self, output_dir=None, state_dict=None):
        model = self.accelerator.unwrap_model(self.model)
        host = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        super()._save(output_dir, state_dict=host)


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 6, 2 + (3 * i) % 8
        thing = ("coins", "cards", "eggs", "shells")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Finn has {a} boxes with {b} {thing} each. How many {thing} does Finn have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def length(completion_ids, **kwargs):
    return [-len(ids) / 40 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=5e-4,
        max_grad_norm=0.25,
        loss_type="grpo",
        save_strategy="steps",
        save_steps=1,
        save_only_model=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = InstrumentedTrainer(MODEL, [digits, length], args, train_dataset=dataset())
    trainer.train()
    print(len(trainer.seconds), trainer.norms)


if __name__ == "__main__":
    main()
