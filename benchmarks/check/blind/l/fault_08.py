"""GRPO with a static loss scale, as we use it for half-precision runs on cards without bfloat16."""
import os
import tempfile
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class PrecisionConfig:
    loss_scale: float = 1024.0
    skip_on_overflow: bool = True


class StaticScaler(TrainerCallback):
    """Takes the loss scale out of the gradients again before the optimizer sees them."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.overflows = 0

    @torch.no_grad()
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if self.cfg.skip_on_overflow and not all(torch.isfinite(g).all() for g in grads):
            self.overflows += 1
            for g in grads:
                g.zero_()
            return
        for g in grads:
            g.div_(self.cfg.loss_scale)


class ScaledTrainer(GRPOTrainer):
    def __init__(self, *args, precision, **kwargs):
        self.precision = precision
        super().__init__(*args, **kwargs)
        self.add_callback(StaticScaler(precision))

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss * self.precision.loss_scale)
        self._step += 1
        return loss.detach()


def keep_short(completion_ids, **kwargs):
    return [-len(ids) / 10 for ids in completion_ids]


def has_digits(completions, **kwargs):
    return [float(any(ch.isdigit() for ch in c)) for c in completions]


def main():
    header = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    sums = [f"What is {a} times {b}?" for a in range(2, 6) for b in (3, 7, 11)]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        num_generations=6,
        max_completion_length=16,
        max_grad_norm=1.0,
        max_steps=4,
        learning_rate=5e-2,
        optim="sgd",
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=2,
    )
    trainer = ScaledTrainer(
        model=os.path.join(HERE, "tiny"),
        reward_funcs=[keep_short, has_digits],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [header.format(s) for s in sums]}),
        precision=PrecisionConfig(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
